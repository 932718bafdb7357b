//! What a run found, for people and for programs.
//!
//! The JSON shape is in `docs/schema/check.json`. Fields are added, never taken away or changed within a version.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use ah_plugin_api::{Capability, Description};
use serde::{Serialize, Serializer};

use crate::target::Way;

/// The outcome of one case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "status", rename_all = "kebab-case")]
pub enum Outcome {
    /// What the contract says was seen.
    Passed,
    /// Something else was seen.
    Failed {
        /// What.
        message: String,
        /// The last calls and their outcomes, the latest last.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        trace: Vec<String>,
    },
    /// It could not be looked at.
    Skipped {
        /// Why: a capability that the provider does not claim, or something that this machine lacks.
        reason: String,
        /// Whether it is the machine that lacks something, not the provider.
        prerequisite: bool,
    },
    /// It failed, as the caller said it would.
    ExpectedFailure {
        /// Why the caller expected that.
        reason: String,
        /// What was seen.
        message: String,
    },
    /// It passed, though the caller said it would not. Counts as a failure: the expectation is out of date.
    UnexpectedPass {
        /// Why the caller expected a failure.
        reason: String,
    },
}

/// One case of a report.
#[derive(Debug, Clone, Serialize)]
pub struct CaseReport {
    /// The case.
    pub id: &'static str,
    /// The words of the contract that it checks.
    pub clauses: &'static [&'static str],
    /// How it ended.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// How long it took.
    #[serde(rename = "seconds", serialize_with = "seconds")]
    pub took: Duration,
}

/// How many cases ended how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Summary {
    /// Passed.
    pub passed: usize,
    /// Failed.
    pub failed: usize,
    /// Skipped, for whatever reason.
    pub skipped: usize,
    /// Failed as expected.
    pub expected_failures: usize,
    /// Passed unexpectedly.
    pub unexpected_passes: usize,
}

/// What a run found.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The shape's version: 1.
    pub version: u32,
    /// What was tested.
    pub target: String,
    /// By which way.
    pub way: Way,
    /// What the provider says of itself; none if it could not be opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<ProviderReport>,
    /// Why no case, or not all of them, could be run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Every case.
    pub cases: Vec<CaseReport>,
    /// How many ended how.
    pub summary: Summary,
    /// Whether the provider keeps the contract, as far as was seen.
    pub ok: bool,
}

/// What a provider says of itself.
#[derive(Debug, Clone, Serialize)]
pub struct ProviderReport {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Its capabilities.
    pub capabilities: BTreeSet<Capability>,
}

impl From<Description> for ProviderReport {
    fn from(description: Description) -> Self {
        Self {
            name: description.name.to_string(),
            version: description.version,
            rank: description.rank,
            capabilities: description.capabilities,
        }
    }
}

impl Report {
    pub(crate) fn new(target: String, way: Way) -> Self {
        Self {
            version: 1,
            target,
            way,
            provider: None,
            fault: None,
            cases: Vec::new(),
            summary: Summary::default(),
            ok: false,
        }
    }

    /// Counts. With `strict`, what this machine lacks counts as a failure.
    pub(crate) fn close(mut self, strict: bool) -> Self {
        let mut lacking = 0;
        for case in &self.cases {
            let summary = &mut self.summary;
            match &case.outcome {
                Outcome::Passed => summary.passed += 1,
                Outcome::Failed { .. } => summary.failed += 1,
                Outcome::Skipped { prerequisite, .. } => {
                    summary.skipped += 1;
                    lacking += usize::from(*prerequisite);
                }
                Outcome::ExpectedFailure { .. } => summary.expected_failures += 1,
                Outcome::UnexpectedPass { .. } => summary.unexpected_passes += 1,
            }
        }
        self.ok = self.fault.is_none()
            && self.summary.failed == 0
            && self.summary.unexpected_passes == 0
            && self.summary.passed > 0
            && !(strict && lacking > 0);
        self
    }

    /// The exit status that a program ends with: 0 if all is well, else 1.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        u8::from(!self.ok)
    }

    /// As JSON, in the shape described at the top of this module.
    ///
    /// # Panics
    /// Never: everything in it is text and numbers.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("a report holds nothing that JSON cannot")
    }

    /// For a terminal or a file, without colour. With `all`, passed cases too.
    #[must_use]
    pub fn to_text(&self, all: bool) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_text(&mut text, all);
        text
    }

    fn write_text(&self, out: &mut String, all: bool) -> std::fmt::Result {
        match &self.provider {
            Some(provider) => {
                writeln!(out, "{} {} ({}), {}", provider.name, provider.version, self.target, self.way)?;
                let capabilities: Vec<_> = provider.capabilities.iter().map(|c| c.as_str()).collect();
                writeln!(out, "capabilities: {}", capabilities.join(", "))?;
            }
            None => writeln!(out, "{}, {}", self.target, self.way)?,
        }
        for case in &self.cases {
            match &case.outcome {
                Outcome::Passed if all => writeln!(out, "pass   {} ({:.2} s)", case.id, case.took.as_secs_f64())?,
                Outcome::Passed => {}
                Outcome::Failed { message, trace } => {
                    writeln!(out, "FAIL   {}", case.id)?;
                    case.clauses.iter().try_for_each(|clause| writeln!(out, "         the contract: {clause}"))?;
                    writeln!(out, "         {message}")?;
                    trace.iter().try_for_each(|line| writeln!(out, "           {line}"))?;
                }
                Outcome::Skipped { reason, .. } => writeln!(out, "skip   {}: {reason}", case.id)?,
                Outcome::ExpectedFailure { reason, message } => {
                    writeln!(out, "xfail  {}: {reason}", case.id)?;
                    if all {
                        writeln!(out, "         {message}")?;
                    }
                }
                Outcome::UnexpectedPass { reason } => {
                    writeln!(out, "XPASS  {}: it passed, but was expected to fail ({reason})", case.id)?;
                }
            }
        }
        if let Some(fault) = &self.fault {
            writeln!(out, "FAULT  {fault}")?;
        }
        let Summary { passed, failed, skipped, expected_failures, unexpected_passes } = self.summary;
        write!(out, "{passed} passed, {failed} failed, {skipped} skipped")?;
        if expected_failures > 0 {
            write!(out, ", {expected_failures} failed as expected")?;
        }
        if unexpected_passes > 0 {
            write!(out, ", {unexpected_passes} passed unexpectedly")?;
        }
        let verdict = match self.ok {
            true => "the contract is kept",
            false if self.cases.is_empty() => "nothing was tested",
            false => "the contract is NOT kept",
        };
        writeln!(out, ": {verdict}")
    }
}

fn seconds<S: Serializer>(took: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    // Milliseconds are as much as anybody believes.
    serializer.serialize_f64((took.as_secs_f64() * 1000.0).round() / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_tested_is_not_said_to_be_broken() {
        let mut report = Report::new("it".to_owned(), Way::Trait);
        report.fault = Some("it cannot serve here".to_owned());
        let report = report.close(false);
        let told = report.to_text(false);
        assert!(!report.ok && told.contains("it cannot serve here") && told.contains("nothing was tested"), "{told}");
    }
}
