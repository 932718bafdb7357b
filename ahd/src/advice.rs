//! What providers advise, as users hear it. A provider works as root in a store of root's, and what is to be done there users cannot do.

use std::path::Path;

/// What says in an advice that the last way is meant, after which nobody knows of what is lost. Where another way goes first, `; ` is in between.
const LAST: &str = "if they are lost for good";

/// `hint` for a user whose store is kept below `state`, and is forgotten by the administrator's command `forget`.
pub(crate) fn for_user(hint: &str, state: &Path, forget: &str) -> String {
    let state = state.display().to_string();
    let way = |way: &str| match (way.contains(&state), way.split_once(LAST)) {
        (false, _) => way.to_owned(),
        (true, Some((before, _))) => {
            format!(
                "{before}{LAST}, as root, while no helper runs: `{forget}`, with which all else that is kept there goes, branches too"
            )
        }
        (true, None) => format!("as root: {way}"),
    };
    hint.split("; ").map(way).collect::<Vec<_>>().join("; ")
}

/// A hint without the last way and what comes after it.
fn without_last(hint: &str) -> Option<String> {
    let rest: Vec<&str> = hint.split("; ").take_while(|way| !way.contains(LAST)).collect();
    (!rest.is_empty()).then(|| rest.join("; "))
}

/// A hint whose last way is this command.
pub(crate) fn with_last(hint: Option<&str>, command: &str) -> String {
    let before = hint.and_then(without_last).map(|before| format!("{before}; or, ")).unwrap_or_default();
    format!("{before}{LAST}, the branches with it: `{command}`")
}

/// A remedy without the advice to set up the helper, or to use it: it is there.
pub(crate) fn without_helper(remedy: &str) -> Option<String> {
    let mut rest = String::new();
    let mut join = "";
    let mut ways = remedy;
    loop {
        let next = [", or ", "; or "].iter().filter_map(|join| Some((ways.find(join)?, *join))).min();
        let way = next.map_or(ways, |(at, _)| &ways[..at]);
        if !way.contains("`ahd`") && !way.contains("the helper, ahd") {
            rest.push_str(if rest.is_empty() { "" } else { join });
            rest.push_str(way);
        }
        let Some((at, next)) = next else { break };
        (join, ways) = (next, &ways[at + next.len()..]);
    }
    (!rest.is_empty()).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_helper_is_no_remedy_of_its_own() {
        let of = |remedy: &str| without_helper(remedy);
        assert_eq!(of("a, or b"), Some("a, or b".to_owned()));
        assert_eq!(of("mount it, or let the administrator set up `ahd`, which does it"), Some("mount it".to_owned()));
        assert_eq!(of("let the administrator set up `ahd`"), None);
        assert_eq!(
            of("as root: zfs allow me POOL; or use the helper, ahd"),
            Some("as root: zfs allow me POOL".to_owned())
        );
        assert_eq!(of("use the helper, ahd, or run this as root"), Some("run this as root".to_owned()));
        assert_eq!(of("a, or b; or c, or d"), Some("a, or b; or c, or d".to_owned()));
        // What else is its is no advice to set it up.
        let own = "{} in ahd.conf, and ahd started anew (`systemctl restart ahd`); or make it one";
        assert_eq!(of(own), Some(own.to_owned()));
    }

    #[test]
    fn what_is_roots_to_do_is_said_to_be() {
        let of = |hint: &str| for_user(hint, Path::new("/var/lib/ahd"), "ahd --forget-store 7/abc/btrfs");
        let forget = "if they are lost for good, as root, while no helper runs: `ahd --forget-store 7/abc/btrfs`, with which all else that is kept there goes, branches too";
        assert_eq!(of("mount it; or swap off"), "mount it; or swap off");
        let lost = "if they are lost for good, forget them: rm '/var/lib/ahd/stores/7/abc/btrfs/elsewhere'";
        assert_eq!(of(&format!("mount it; or, {lost}")), format!("mount it; or, {forget}"));
        assert_eq!(of(lost), forget);
        assert_eq!(
            without_last(&format!("mount it; or swap off; or, {lost}; it")),
            Some("mount it; or swap off".to_owned())
        );
        assert_eq!(without_last(lost), None);
        // Also where the first way leads there.
        let both = of(&format!("move it to /var/lib/ahd/stores/7/abc/btrfs/depot; or, {lost}"));
        assert_eq!(both, format!("as root: move it to /var/lib/ahd/stores/7/abc/btrfs/depot; or, {forget}"));
    }
}
