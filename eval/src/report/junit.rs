//! The result of a run for continuous integration, in JUnit's XML: a suite per report, with a case for the
//! answers and one for each gate.

use ntl_common::printable::printable;

use crate::run::gate::Gate;
use crate::store::report::Report;

/// A suite of cases.
#[derive(Debug, Clone, Default)]
pub struct JunitSuite {
    name: String,
    seconds: f64,
    cases: Vec<Case>,
}

#[derive(Debug, Clone)]
struct Case {
    name: String,
    outcome: TestOutcome,
}

#[derive(Debug, Clone)]
enum TestOutcome {
    Passed,
    /// A gate was missed.
    Failure(String),
    /// There are no figures, or not for every item.
    Error(String),
}

/// The case for the answers of all items.
const ANSWERS: &str = "every item has an answer";

impl JunitSuite {
    pub fn of_report(report: &Report, gates: &[Gate]) -> Self {
        let Report { task, split, n, failed, seconds, .. } = report;
        let answers = if *failed > 0 {
            TestOutcome::Error(format!("{failed} of {n} items failed"))
        } else if let Some(missing) = &report.missing_scores {
            TestOutcome::Error(format!("{} of {n} items have no likelihood: {}", missing.n, missing.first))
        } else {
            TestOutcome::Passed
        };
        let mut cases = vec![Case { name: ANSWERS.to_owned(), outcome: answers }];
        for gate in gates {
            let outcome = gate.miss.clone().map_or(TestOutcome::Passed, TestOutcome::Failure);
            cases.push(Case { name: gate.name.clone(), outcome });
        }
        Self { name: format!("{task} {split}"), seconds: *seconds, cases }
    }

    /// A run without a report.
    pub fn of_error(task: &str, split: &str, error: String) -> Self {
        let case = Case { name: ANSWERS.to_owned(), outcome: TestOutcome::Error(error) };
        Self { name: format!("{task} {split}"), seconds: 0.0, cases: vec![case] }
    }

    fn count(&self, is_counted: fn(&TestOutcome) -> bool) -> usize {
        self.cases.iter().filter(|case| is_counted(&case.outcome)).count()
    }

    fn xml(&self) -> String {
        let name = attribute(&self.name);
        let failures = self.count(|outcome| matches!(outcome, TestOutcome::Failure(_)));
        let errors = self.count(|outcome| matches!(outcome, TestOutcome::Error(_)));
        let tests = self.cases.len();
        let mut xml = format!(
            "  <testsuite name=\"{name}\" tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\" time=\"{:.3}\">\n",
            self.seconds
        );
        for case in &self.cases {
            let start =
                format!("    <testcase classname=\"ntl-eval.{name}\" name=\"{}\"", attribute(&case.name));
            xml += &match &case.outcome {
                TestOutcome::Passed => format!("{start}/>\n"),
                TestOutcome::Failure(text) => {
                    format!("{start}><failure message=\"{}\"/></testcase>\n", attribute(text))
                }
                TestOutcome::Error(text) => {
                    format!("{start}><error message=\"{}\"/></testcase>\n", attribute(text))
                }
            };
        }
        xml + "  </testsuite>\n"
    }
}

/// Returns the file.
pub fn document(suites: &[JunitSuite]) -> String {
    let suites: String = suites.iter().map(JunitSuite::xml).collect();
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"ntl-eval\">\n{suites}</testsuites>\n"
    )
}

/// Returns a text as the value of an attribute. XML has no control characters, not even escaped ones.
fn attribute(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in printable(text).chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => escaped.push(char::REPLACEMENT_CHARACTER),
            plain => escaped.push(plain),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_has_a_case_for_the_answers_and_for_each_gate() {
        let report = Report {
            task: "custom".to_owned(),
            split: "a<b".to_owned(),
            n: 3,
            failed: 1,
            seconds: 1.25,
            ..Report::default()
        };
        let gates = [
            Gate { name: "accuracy at least 0.5".to_owned(), miss: None },
            Gate { name: "mae at most 1".to_owned(), miss: Some("\"2\" & \u{1b}\n".to_owned()) },
        ];
        let suites = [
            JunitSuite::of_report(&report, &gates),
            JunitSuite::of_error("custom", "late", "no endpoint".to_owned()),
        ];
        insta::assert_snapshot!(document(&suites), @r#"
        <?xml version="1.0" encoding="UTF-8"?>
        <testsuites name="ntl-eval">
          <testsuite name="custom a&lt;b" tests="3" failures="1" errors="1" time="1.250">
            <testcase classname="ntl-eval.custom a&lt;b" name="every item has an answer"><error message="1 of 3 items failed"/></testcase>
            <testcase classname="ntl-eval.custom a&lt;b" name="accuracy at least 0.5"/>
            <testcase classname="ntl-eval.custom a&lt;b" name="mae at most 1"><failure message="&quot;2&quot; &amp; \u{1b}\n"/></testcase>
          </testsuite>
          <testsuite name="custom late" tests="1" failures="0" errors="1" time="0.000">
            <testcase classname="ntl-eval.custom late" name="every item has an answer"><error message="no endpoint"/></testcase>
          </testsuite>
        </testsuites>
        "#);
    }
}
