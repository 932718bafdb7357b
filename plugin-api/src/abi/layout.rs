//! Whether the table of a library is an edition of ours.
//!
//! The ABI library's own check refuses a library whose table is shorter than the host's, that is every plugin that is one
//! operation behind, and one whose package differs in its minor version below 1.0. Editions of one ABI major version only ever
//! append, so it is enough that the *older* of the two tables is a beginning of the newer one, whichever side has it.

use abi_stable::abi_stability::abi_checking::{AbiInstability, AbiInstabilityErrors, check_layout_compatibility};
use abi_stable::type_layout::TypeLayout;

/// Checks the layouts of two tables against each other; the error is one sentence.
pub(crate) fn check(ours: &'static TypeLayout, theirs: &'static TypeLayout) -> Result<(), String> {
    // Theirs is as long as ours, or longer.
    let Err(first) = compatible(ours, theirs) else { return Ok(()) };
    // Theirs is shorter.
    compatible(theirs, ours).map_err(|_| first)
}

fn compatible(interface: &'static TypeLayout, implementation: &'static TypeLayout) -> Result<(), String> {
    match check_layout_compatibility(interface, implementation) {
        Ok(()) => Ok(()),
        Err(errors) => summary(&errors).map_or(Ok(()), Err),
    }
}

/// The differences that matter, if any. Versions of packages do not: the ABI has a version of its own, and that of the ABI
/// library's types was compared before.
fn summary(errors: &AbiInstabilityErrors) -> Option<String> {
    let all = errors.errors.iter().flat_map(|error| {
        let at = error.stack_trace.last().map_or_else(|| "the table".to_owned(), |at| at.found.to_string());
        error.errs.iter().map(move |what| (at.clone(), what))
    });
    let mut all = all.filter(|(_, what)| !matches!(what, AbiInstability::PackageVersion(_)));
    let (at, what) = all.next()?;
    let what: String = format!("{what:?}").chars().take_while(|c| c.is_alphanumeric()).collect();
    let at: String = at.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(120).collect();
    Some(match all.count() {
        0 => format!("{what} at {at}"),
        more => format!("{what} at {at}, and {more} more differences"),
    })
}

#[cfg(test)]
mod tests {
    use abi_stable::StableAbi;

    use super::check;
    use crate::abi::{ABI_MINOR, context, frozen, table};
    use crate::wire::Op;

    #[test]
    fn an_edition_fits_whichever_side_is_older() {
        let (now, then) = (table::Table_Ref::LAYOUT, frozen::Table_Ref::LAYOUT);
        check(now, now).unwrap();
        check(now, then).unwrap();
        check(then, now).unwrap();
    }

    #[test]
    fn the_frozen_table_is_one_operation_behind_and_the_version_counts_operations() {
        let entry = size_of::<extern "C" fn()>();
        assert_eq!(size_of::<frozen::Table>() + entry, size_of::<table::Table>());
        // The first edition, 1.0, had 15 operations. New callbacks count as well.
        assert!(Op::ALL.len() <= 15 + ABI_MINOR as usize, "raise ABI_MINOR and ABI_VERSION");
    }

    #[test]
    fn what_is_no_edition_is_told_in_a_sentence() {
        let why = check(table::Table_Ref::LAYOUT, context::Callbacks_Ref::LAYOUT).unwrap_err();
        assert!(why.starts_with("Name") && !why.contains('\n') && why.len() < 300, "{why}");
    }
}
