//! `remanent status` and `transfer`.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use base::MemberId;
use client::Options;
use client::blocking::Client;
use serde_json::{Value, json};

use super::Global;
use crate::layout::Cluster;

/// Shows every member. Exit code 1 if nobody leads.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// As JSON: an object with one element of `members` per member.
    #[arg(long, conflicts_with = "watch")]
    json: bool,
    /// Again every second, until interrupted.
    #[arg(long)]
    watch: bool,
}

/// Asks the leader to hand over.
#[derive(Debug, clap::Args)]
pub(crate) struct Transfer {
    /// To this member; left out, to whoever is furthest.
    #[arg(long, value_name = "MEMBER")]
    to: Option<u32>,
}

/// What was seen of a cluster.
pub(crate) struct Sight {
    /// Every member with what it says, or why it says nothing.
    pub(crate) members: Vec<(MemberId, Result<Value, String>)>,
}

impl Sight {
    /// Who leads: of those who say so, the one with the highest term.
    pub(crate) fn leader(&self) -> Option<MemberId> {
        let said = self.members.iter().filter_map(|(id, said)| Some((id, said.as_ref().ok()?)));
        said.filter(|(_, said)| said["role"] == "leader")
            .max_by_key(|(_, said)| said["term"].as_u64())
            .map(|(id, _)| *id)
    }
}

/// Asks every member how it is; each may take `patience`.
pub(crate) fn look(cluster: &Cluster, patience: Duration) -> Sight {
    let ask = |id: MemberId| -> Result<Value, String> {
        let options =
            Options { members: vec![id], deadline: patience, ..Options::of_file(cluster.file()) };
        let text = Client::connect(options)
            .and_then(|mut client| client.status(id))
            .map_err(|error| error.to_string())?;
        serde_json::from_str(&text).map_err(|error| error.to_string())
    };
    Sight { members: cluster.ids().map(|id| (id, ask(id))).collect() }
}

pub(crate) fn run(global: &Global, arguments: &Arguments) -> Result<ExitCode> {
    let cluster = Cluster::read(&global.cluster)?;
    let patience = global.deadline.min(Duration::from_secs(1));
    loop {
        let sight = look(&cluster, patience);
        let mut out = std::io::stdout().lock();
        if arguments.json {
            writeln!(out, "{}", to_json(&cluster, &sight))?;
        } else {
            if arguments.watch && out.is_terminal() {
                // Home, and clear what is below.
                write!(out, "\x1b[H\x1b[J")?;
            }
            write!(out, "{}", table(&cluster, &sight))?;
        }
        out.flush()?;
        if !arguments.watch {
            let leads = sight.leader().is_some();
            return Ok(if leads { ExitCode::SUCCESS } else { ExitCode::from(super::NO) });
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn to_json(cluster: &Cluster, sight: &Sight) -> Value {
    let members = sight.members.iter().map(|(id, said)| match said {
        Ok(said) => said.clone(),
        Err(why) => json!({ "member": id.0, "role": "down", "trouble": why }),
    });
    json!({
        "cluster": cluster.id().to_string(),
        "leader": sight.leader().map(|id| id.0),
        "members": members.collect::<Vec<_>>(),
    })
}

fn table(cluster: &Cluster, sight: &Sight) -> String {
    let mut text = format!(
        "cluster {}  durability {}\n{:>6}  {:<9} {:>6} {:>12} {:>12} {:>9} {:>10} {:>7}\n",
        cluster.id(),
        cluster.durability().name(),
        "member",
        "role",
        "term",
        "committed",
        "applied",
        "segments",
        "state",
        "clients"
    );
    for (id, said) in &sight.members {
        text += &match said {
            Ok(said) => row(*id, said),
            Err(why) => format!("{:>6}  down      {why}\n", id.0),
        };
    }
    match sight.leader() {
        Some(leader) => text += &format!("member {leader} leads\n"),
        None => text += "nobody leads: writes and reads wait\n",
    }
    text
}

fn row(id: MemberId, said: &Value) -> String {
    let number = |name: &str| said[name].as_u64().unwrap_or_default();
    let segments = &said["segments"];
    let used = format!("{}/{}", segments["used"], segments["total"]);
    let state = bytesize::ByteSize(number("state_bytes")).display().iec().to_string();
    let failed = said["failed"].as_bool() == Some(true);
    let role = if failed { "FAILED" } else { said["role"].as_str().unwrap_or("?") };
    let mut text = format!(
        "{:>6}  {role:<9} {:>6} {:>12} {:>12} {used:>9} {state:>10} {:>7}\n",
        id.0,
        number("term"),
        number("commit_index"),
        number("applied_index"),
        said["door"]["clients"]
    );
    if let Some(trouble) = said["trouble"].as_str() {
        text += &format!("        {trouble}\n");
    }
    text
}

pub(crate) fn transfer(global: &Global, arguments: &Transfer) -> Result<ExitCode> {
    let cluster = Cluster::read(&global.cluster)?;
    let to = arguments.to.map(MemberId);
    if let Some(to) = to {
        cluster.member(to)?;
    }
    let mut client =
        Client::connect(Options { deadline: global.deadline, ..Options::of_file(cluster.file()) })?;
    let before = look(&cluster, Duration::from_secs(1)).leader();
    if to.is_some() && before == to {
        println!("member {} leads already", arguments.to.unwrap_or_default());
        return Ok(ExitCode::SUCCESS);
    }
    client.transfer(to)?;
    let began = std::time::Instant::now();
    while began.elapsed() < global.deadline {
        let leader = look(&cluster, Duration::from_secs(1)).leader();
        if leader.is_some() && leader != before {
            println!("member {} leads", leader.unwrap_or_default());
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    bail!("the leader did not change; `remanent status` shows whether a member could take over")
}
