//! The commands that read and write keys.

use std::io::{IsTerminal as _, Read as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use client::Options;
use client::blocking::Client;

use super::{Global, NO};

/// Prints the value of a key as it is. Exit code 1 if there is none.
#[derive(Debug, clap::Args)]
pub(crate) struct Get {
    /// The key.
    key: String,
}

/// Sets a key.
#[derive(Debug, clap::Args)]
pub(crate) struct Put {
    /// The key.
    key: String,
    /// The value; `-` reads it from the standard input.
    #[arg(allow_hyphen_values = true)]
    value: String,
    /// How long it lives, as "90s" or "1h".
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    ttl: Option<Duration>,
}

/// Removes keys. Exit code 1 if none of them was there.
#[derive(Debug, clap::Args)]
pub(crate) struct Del {
    /// The keys.
    #[arg(required = true)]
    keys: Vec<String>,
}

/// Lists keys in order, one a line.
#[derive(Debug, clap::Args)]
pub(crate) struct Scan {
    /// Only keys that begin with this.
    #[arg(long, conflicts_with_all = ["from", "to"])]
    prefix: Option<String>,
    /// The first key of the range.
    #[arg(long, default_value = "")]
    from: String,
    /// The first key behind the range.
    #[arg(long)]
    to: Option<String>,
    /// At most so many keys.
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
    limit: u64,
    /// The values too, behind a tab.
    #[arg(long)]
    values: bool,
}

/// Sets a key to a new value, or removes it, if it has the value that was expected. Exit code 1 if
/// it has another.
#[derive(Debug, clap::Args)]
pub(crate) struct Cas {
    /// The key.
    key: String,
    /// The value it must have; left out, the key must be absent.
    #[arg(long, value_name = "VALUE", allow_hyphen_values = true)]
    expect: Option<String>,
    /// The value it gets; left out, the key is removed.
    #[arg(long, value_name = "VALUE", allow_hyphen_values = true)]
    set: Option<String>,
}

/// Adds to an integer, kept as decimal text; an absent key counts as 0. Prints the sum.
#[derive(Debug, clap::Args)]
pub(crate) struct Incr {
    /// The key.
    key: String,
    /// What to add.
    #[arg(default_value_t = 1, allow_hyphen_values = true)]
    by: i64,
}

/// Changes how much state the group holds. A write that would grow it above that is refused; reads and
/// deletes go on.
#[derive(Debug, clap::Args)]
pub(crate) struct Limit {
    /// Bytes of keys and values, with some for each, as "4GiB"; `status` shows how many there are.
    max_state: bytesize::ByteSize,
}

fn connect(global: &Global) -> Result<Client> {
    let options = Options { deadline: global.deadline, ..Options::of_cluster(&global.cluster)? };
    Ok(Client::connect(options)?)
}

fn no(message: &str) -> ExitCode {
    eprintln!("{message}");
    ExitCode::from(NO)
}

pub(crate) fn get(global: &Global, arguments: &Get) -> Result<ExitCode> {
    let found = connect(global)?.get(arguments.key.as_bytes())?;
    let Some(found) = found else { return Ok(no("no such key")) };
    let mut out = std::io::stdout().lock();
    out.write_all(&found.value)?;
    if out.is_terminal() {
        out.write_all(b"\n")?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn put(global: &Global, arguments: &Put) -> Result<ExitCode> {
    let mut bytes = Vec::new();
    let value = if arguments.value == "-" {
        std::io::stdin().read_to_end(&mut bytes).context("cannot read the standard input")?;
        bytes.as_slice()
    } else {
        arguments.value.as_bytes()
    };
    let mut client = connect(global)?;
    match arguments.ttl {
        Some(ttl) => client.put_for(arguments.key.as_bytes(), value, ttl)?,
        None => client.put(arguments.key.as_bytes(), value)?,
    };
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn del(global: &Global, arguments: &Del) -> Result<ExitCode> {
    let mut client = connect(global)?;
    let mut removed = 0_u32;
    for key in &arguments.keys {
        removed += u32::from(client.delete(key.as_bytes())?);
    }
    Ok(if removed == 0 { no("no such key") } else { ExitCode::SUCCESS })
}

pub(crate) fn scan(global: &Global, arguments: &Scan) -> Result<ExitCode> {
    let mut client = connect(global)?;
    let (mut from, to) = match &arguments.prefix {
        Some(prefix) => (prefix.clone().into_bytes(), behind(prefix.as_bytes())),
        None => (arguments.from.clone().into_bytes(), arguments.to.clone().map(String::into_bytes)),
    };
    let mut left = arguments.limit;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    while left > 0 {
        let limit = u32::try_from(left).unwrap_or(u32::MAX);
        let page = client.scan(&from, to.as_deref(), limit)?;
        for (key, found) in &page.entries {
            out.write_all(key)?;
            if arguments.values {
                out.write_all(b"\t")?;
                out.write_all(&found.value)?;
            }
            out.write_all(b"\n")?;
        }
        left -= page.entries.len() as u64;
        let Some(next) = page.next else { break };
        from = next;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// The first key behind all that begin with `prefix`, if there is one.
fn behind(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != u8::MAX)?;
    let mut behind = prefix[..=last].to_vec();
    behind[last] += 1;
    Some(behind)
}

pub(crate) fn cas(global: &Global, arguments: &Cas) -> Result<ExitCode> {
    let expected = arguments.expect.as_deref().map(str::as_bytes);
    let new = arguments.set.as_deref().map(str::as_bytes);
    let mut client = connect(global)?;
    let held = client.compare_and_set(arguments.key.as_bytes(), expected, new)?;
    Ok(if held { ExitCode::SUCCESS } else { no("the key has another value") })
}

pub(crate) fn incr(global: &Global, arguments: &Incr) -> Result<ExitCode> {
    let now = connect(global)?.increment(arguments.key.as_bytes(), arguments.by)?;
    println!("{now}");
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn limit(global: &Global, arguments: &Limit) -> Result<ExitCode> {
    connect(global)?.set_max_state_bytes(arguments.max_state.0)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::behind;

    #[test]
    fn the_key_behind_a_prefix() {
        assert_eq!(behind(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(behind(b"a\xff"), Some(b"b".to_vec()));
        assert_eq!(behind(b"\xff\xff"), None);
        assert_eq!(behind(b""), None);
    }
}
