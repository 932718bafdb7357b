//! The cases, a file for each part of the contract.
//!
//! A provider under test may be anything, and may run as root. So whatever a case hands it that is meant to lead it astray (a
//! reference that looks like a path, a symlink) names something inside the case's own directory, or nothing at all, however
//! it is taken: never `/`, `..`, or a file of the machine.

mod answers;
mod busy;
mod cancel;
mod changed;
mod clones;
mod concurrency;
mod convert;
mod diff;
mod exact;
mod failure;
mod hands_off;
mod immutable;
mod policy;
mod process;
mod reading;
mod repository;
mod views;

use crate::case::Case;

/// What both kinds of made things are tested for.
const REPLACED: &str = "something else may bear its name by now: that is not the provider's to remove, whoever asks.";

/// Every case, those of one part together, the plain ones first.
pub(crate) fn all() -> impl Iterator<Item = &'static Case> {
    let parts: [&'static [Case]; 17] = [
        answers::CASES,
        exact::CASES,
        busy::CASES,
        changed::CASES,
        immutable::CASES,
        reading::CASES,
        diff::CASES,
        views::CASES,
        clones::CASES,
        convert::CASES,
        hands_off::CASES,
        policy::CASES,
        repository::CASES,
        cancel::CASES,
        failure::CASES,
        concurrency::CASES,
        process::CASES,
    ];
    parts.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ah_plugin_api::Capability;

    use crate::case::Need;

    #[test]
    fn ids_are_unique_and_every_case_quotes_the_contract() {
        let mut seen = BTreeSet::new();
        for case in super::all() {
            assert!(seen.insert(case.id), "{} is there twice", case.id);
            assert!(!case.clauses.is_empty(), "{} checks nothing", case.id);
        }
    }

    #[test]
    fn each_capability_that_is_claimed_is_tested() {
        for capability in Capability::ALL.iter().filter(|capability| **capability != Capability::Unknown) {
            let is_tested = super::all().any(|case| case.needs.contains(&Need::Has(*capability)));
            assert!(is_tested, "no case is for who claims {capability}");
        }
    }
}
