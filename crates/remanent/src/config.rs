//! How a member runs: a flag beats the environment, that beats the file, that beats the default.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::node::Running;

/// What may stand in `node.toml`. Times are texts such as "500ms".
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    suspicion_timeout: Option<String>,
    spin: Option<String>,
    clients_max: Option<u32>,
    write_delay_ns: Option<u32>,
    may_kill_writers: Option<bool>,
    cpu: Option<usize>,
}

/// How a member runs. Everything here may also stand in its node.toml, under the same name with
/// underscores.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Flags {
    /// A file with settings. Default: node.toml in the member's directory, if it is there.
    #[arg(long, value_name = "FILE", env = "REMANENT_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// How long a leader may show no progress before it is suspected [default: 500ms].
    #[arg(long, value_name = "TIME", env = "REMANENT_SUSPICION_TIMEOUT", value_parser = humantime::parse_duration)]
    pub(crate) suspicion_timeout: Option<Duration>,
    /// How long the loop looks for work before it sleeps: longer answers faster and burns more
    /// [default: 20us].
    #[arg(long, value_name = "TIME", env = "REMANENT_SPIN", value_parser = humantime::parse_duration)]
    pub(crate) spin: Option<Duration>,
    /// The most clients at one time [default: 256].
    #[arg(long, value_name = "COUNT", env = "REMANENT_CLIENTS_MAX")]
    pub(crate) clients_max: Option<u32>,
    /// Nanoseconds added to each write into the log's memory, to see what slower memory costs
    /// [default: 0].
    #[arg(long, value_name = "NS", env = "REMANENT_WRITE_DELAY_NS")]
    pub(crate) write_delay_ns: Option<u32>,
    /// Lets this member kill a stopped process that holds one of its segments back
    /// [default: false].
    #[arg(long, value_name = "BOOL", env = "REMANENT_MAY_KILL_WRITERS")]
    pub(crate) may_kill_writers: Option<bool>,
    /// Binds the loop to a processor.
    #[arg(long, value_name = "NUMBER", env = "REMANENT_CPU")]
    pub(crate) cpu: Option<usize>,
    /// Makes this member lose a key, to show that a checker sees it.
    #[arg(long, value_name = "KEY", hide = true)]
    pub(crate) plant_loss: Option<String>,
    /// Makes this member call durable what it never synced, to show that a power cut is seen.
    #[arg(long, hide = true)]
    pub(crate) plant_no_sync: bool,
}

impl Flags {
    /// The settings in force for the member whose own file is at `default_file`.
    ///
    /// # Errors
    /// When the file cannot be read or says something that is not known.
    pub(crate) fn resolve(&self, default_file: &Path) -> Result<Running> {
        let file = match &self.config {
            Some(path) => read(path)?,
            None if default_file.exists() => read(default_file)?,
            None => File::default(),
        };
        let default = Running::default();
        let time = |name: &str, text: &Option<String>| -> Result<Option<Duration>> {
            let Some(text) = text else { return Ok(None) };
            let time = humantime::parse_duration(text);
            time.map(Some).with_context(|| format!("{name} = \"{text}\" is no time, as \"500ms\""))
        };
        let suspicion_timeout = self
            .suspicion_timeout
            .or(time("suspicion_timeout", &file.suspicion_timeout)?)
            .unwrap_or(default.suspicion_timeout);
        ensure!(
            suspicion_timeout >= Duration::from_millis(10),
            "a suspicion timeout below 10ms would suspect every leader"
        );
        let spin = self.spin.or(time("spin", &file.spin)?).unwrap_or(default.spin);
        let may_kill_writers = self.may_kill_writers.or(file.may_kill_writers);
        Ok(Running {
            suspicion_timeout,
            spin,
            clients_max: self.clients_max.or(file.clients_max).unwrap_or(default.clients_max),
            write_delay_ns: self.write_delay_ns.or(file.write_delay_ns).unwrap_or_default(),
            may_kill_writers: may_kill_writers.unwrap_or_default(),
            cpu: self.cpu.or(file.cpu),
            plant_loss: self.plant_loss.clone().map(String::into_bytes),
            plant_no_sync: self.plant_no_sync,
        })
    }
}

fn read(path: &Path) -> Result<File> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("{}: cannot be read", path.display()))?;
    toml::from_str(&text).with_context(|| format!("{}: is not a node's settings", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("{}-{name}.toml", std::process::id()));
        std::fs::write(&path, text).expect("the temporary directory is writable");
        path
    }

    #[test]
    fn a_flag_beats_the_file_and_the_file_beats_the_default() {
        let path = file("beats", "suspicion_timeout = \"2s\"\nclients_max = 8\n");
        let flags = Flags { clients_max: Some(9), ..Flags::default() };
        let running = flags.resolve(&path).expect("the file is good");
        std::fs::remove_file(&path).expect("it is there");
        assert_eq!(running.suspicion_timeout, Duration::from_secs(2));
        assert_eq!(running.clients_max, 9);
        assert_eq!(running.spin, Duration::from_micros(20));
    }

    #[test]
    fn a_word_that_is_not_known_is_refused_with_its_name() {
        let path = file("unknown", "suspicion = 5\n");
        let error = Flags::default().resolve(&path).expect_err("there is no such setting");
        std::fs::remove_file(&path).expect("it is there");
        let error = format!("{error:#}");
        assert!(error.contains("suspicion"), "{error}");
    }
}
