//! Tests that could not run here: each prints one line `SKIPPED name: reason` and passes.

/// One skipped test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Skip {
    pub(crate) name: String,
    pub(crate) reason: String,
}

const MARK: &str = "SKIPPED ";

/// The skip that a line of a test's output reports, if it does.
///
/// The mark need not open the line: a test runner with one thread prints `test name ... ` first.
pub(crate) fn in_line(line: &str) -> Option<Skip> {
    let at = line.find(MARK)?;
    let opens_a_word = line[..at].chars().next_back().is_none_or(char::is_whitespace);
    let (name, reason) = line[at + MARK.len()..].split_once(": ")?;
    let is_name = !name.is_empty() && !name.contains(char::is_whitespace);
    (opens_a_word && is_name)
        .then(|| Skip { name: name.to_owned(), reason: reason.trim().to_owned() })
}

/// The skips in a JUnit report that holds the output of passed tests.
///
/// Text in XML holds `<` and `>` only escaped, so that cutting at them leaves the texts whole.
pub(crate) fn in_junit(report: &str) -> Vec<Skip> {
    let lines = report.split(['<', '>']).flat_map(str::lines);
    lines.filter_map(|line| in_line(&unescape(line))).collect()
}

fn unescape(text: &str) -> String {
    // `&amp;` last: what it yields is no escape any more.
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&apos;", "'")
        .replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skip(name: &str, reason: &str) -> Skip {
        Skip { name: name.to_owned(), reason: reason.to_owned() }
    }

    #[test]
    fn finds_a_skip_at_the_start_of_a_line_and_behind_the_runner_s_words() {
        let expected = Some(skip("verbs::conformance", "no device"));
        assert_eq!(in_line("SKIPPED verbs::conformance: no device"), expected);
        assert_eq!(in_line("test it ... SKIPPED verbs::conformance: no device"), expected);
    }

    #[test]
    fn a_line_that_only_speaks_of_skipping_is_no_skip() {
        assert_eq!(in_line("SKIPPED nothing"), None);
        assert_eq!(in_line("NOT_SKIPPED name: reason"), None);
        assert_eq!(in_line("SKIPPED two words: reason"), None);
    }

    #[test]
    fn finds_the_skips_in_a_junit_report_and_unescapes_them() {
        let report = r#"<testcase name="a"><system-out>SKIPPED a: needs &lt;4 GiB&gt; &amp; more
running 1 test</system-out></testcase><testcase name="b"><system-err>
SKIPPED b: no DAX</system-err></testcase>"#;
        assert_eq!(in_junit(report), [skip("a", "needs <4 GiB> & more"), skip("b", "no DAX")]);
    }

    #[test]
    fn a_report_without_a_skip_has_none() {
        assert_eq!(in_junit("<system-out>test a ... ok</system-out>"), []);
    }
}
