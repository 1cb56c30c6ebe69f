//! The two commands of README.md, which CI runs as they stand there.
//!
//! A command is the one fenced `sh` block behind its marker:
//!
//! ````text
//! <!-- command: main -->
//! ```sh
//! cargo run --release -p remanent -- demo
//! ```
//! ````

use anyhow::{Context, Result, bail, ensure};

/// The command of this name in README.md.
pub(crate) fn command_in_file(name: &str) -> Result<String> {
    let text = std::fs::read_to_string("README.md").context("README.md cannot be read")?;
    command(&text, name).context("in README.md")
}

/// The lines of the `sh` block behind the marker of this name; exactly one may have it.
fn command(text: &str, name: &str) -> Result<String> {
    let marker = format!("<!-- command: {name} -->");
    let mut behind_marker = text.split(marker.as_str()).skip(1);
    let Some(block) = behind_marker.next() else {
        bail!("the marker `{marker}` is missing: put it before the command's block");
    };
    ensure!(behind_marker.next().is_none(), "the marker `{marker}` stands there twice: keep one");
    let Some(body) = block.trim_start().strip_prefix("```sh\n") else {
        bail!("behind `{marker}` stands no block that opens with ```sh");
    };
    let Some((command, _)) = body.split_once("\n```") else {
        bail!("the block behind `{marker}` is empty or does not end with ```");
    };
    ensure!(!command.trim().is_empty(), "the block behind `{marker}` holds no command");
    Ok(command.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# Title
<!-- command: main -->
```sh
cargo run
```
text
<!-- command: test -->

```sh
cargo test \\
  --all
```
";

    #[test]
    fn finds_each_command_behind_its_marker() {
        assert_eq!(command(PAGE, "main").unwrap(), "cargo run");
        assert_eq!(command(PAGE, "test").unwrap(), "cargo test \\\n  --all");
    }

    #[test]
    fn a_missing_marker_is_named() {
        let error = command(PAGE, "bench").unwrap_err();
        assert!(error.to_string().contains("`<!-- command: bench -->` is missing"));
    }

    #[test]
    fn a_marker_that_stands_twice_is_refused() {
        let error = command(&PAGE.repeat(2), "main").unwrap_err();
        assert!(error.to_string().contains("twice"));
    }

    #[test]
    fn text_between_marker_and_block_is_refused() {
        let page = "<!-- command: main -->\nRun this:\n```sh\ncargo run\n```\n";
        assert!(command(page, "main").unwrap_err().to_string().contains("no block"));
    }

    #[test]
    fn a_block_without_an_end_or_without_a_command_is_refused() {
        let open = "<!-- command: main -->\n```sh\ncargo run\n";
        assert!(command(open, "main").unwrap_err().to_string().contains("does not end"));
        let empty = "<!-- command: main -->\n```sh\n\n```\n";
        assert!(command(empty, "main").unwrap_err().to_string().contains("no command"));
    }

    #[test]
    fn the_readme_holds_both_commands() {
        let page = include_str!("../../README.md");
        assert!(command(page, "main").unwrap().ends_with("-- demo"));
        assert_eq!(command(page, "test").unwrap(), "cargo xtask test");
    }
}
