//! What a member holds against what was acknowledged.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use base::MemberId;
use client::Options;
use client::blocking::Client;

use crate::layout::Cluster;

/// How many acknowledged writes the member `id` does not hold. It must lead: then what is read
/// comes from its own state.
pub(super) fn lost_on(
    cluster: &Cluster,
    id: MemberId,
    acknowledged: &BTreeMap<Vec<u8>, Vec<u8>>,
) -> Result<u64> {
    let options = Options { members: vec![id], ..Options::of_file(cluster.file()) };
    let mut client = Client::connect(options)?;
    let mut expected = acknowledged.iter().peekable();
    let mut lost = 0;
    let mut from = Vec::new();
    loop {
        let page = client
            .scan(&from, None, u32::MAX)
            .with_context(|| format!("member {id} was to show what it holds"))?;
        for (key, found) in &page.entries {
            while expected.next_if(|(wanted, _)| *wanted < key).is_some() {
                lost += 1;
            }
            if let Some((_, value)) = expected.next_if(|(wanted, _)| *wanted == key) {
                lost += u64::from(*value != found.value);
            }
        }
        let Some(next) = page.next else { break };
        ensure!(next > from, "member {id} shows the same keys again");
        from = next;
    }
    Ok(lost + expected.count() as u64)
}
