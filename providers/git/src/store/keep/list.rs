//! The list of what a snapshot needs of `keep/`.
//!
//! Text, so that a person can read it: a line `ah-kept 1`, then `pack <name> <bytes>`, `loose <id>` and `shallow <id>`, each
//! sorted. Lines of other kinds are passed over.

use std::collections::{BTreeMap, BTreeSet};

use gix::ObjectId;

const FIRST: &str = "ah-kept 1";

/// Packs and loose objects of the user's repository that a snapshot needs.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct List {
    /// Names of packs without ending, and bytes of the pack file.
    pub(super) packs: BTreeMap<String, u64>,
    /// Loose objects.
    pub(super) loose: BTreeSet<ObjectId>,
    /// Where history is cut off.
    pub(super) shallow: BTreeSet<ObjectId>,
}

/// Whether `stem` is what Git calls a pack: nothing in it can lead out of a folder.
pub(super) fn is_pack_name(stem: &str) -> bool {
    stem.strip_prefix("pack-")
        .is_some_and(|hex| (1..=64).contains(&hex.len()) && hex.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

impl List {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = format!("{FIRST}\n");
        for (name, size) in &self.packs {
            out += &format!("pack {name} {size}\n");
        }
        for id in &self.loose {
            out += &format!("loose {id}\n");
        }
        for id in &self.shallow {
            out += &format!("shallow {id}\n");
        }
        out.into_bytes()
    }

    /// None if it is not such a list.
    pub(super) fn decode(data: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(data).ok()?.lines();
        if lines.next() != Some(FIRST) {
            return None;
        }
        let mut out = Self::default();
        for line in lines {
            let (what, rest) = line.split_once(' ')?;
            match what {
                "pack" => {
                    let (name, size) = rest.split_once(' ').filter(|(name, _)| is_pack_name(name))?;
                    out.packs.insert(name.to_owned(), size.parse().ok()?);
                }
                "loose" => {
                    out.loose.insert(ObjectId::from_hex(rest.as_bytes()).ok()?);
                }
                "shallow" => {
                    out.shallow.insert(ObjectId::from_hex(rest.as_bytes()).ok()?);
                }
                _ => {}
            }
        }
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert_eq, proptest};

    use super::List;

    proptest! {
        #[test]
        fn lists_round_trip(packs in proptest::collection::btree_map("pack-[0-9a-f]{40}", any::<u64>(), 0..5), ids in proptest::collection::vec(any::<[u8; 20]>(), 0..9)) {
            let loose = ids.iter().map(|id| gix::ObjectId::Sha1(*id)).collect();
            let list = List { packs, loose, shallow: Default::default() };
            prop_assert_eq!(List::decode(&list.encode()), Some(list));
        }

        #[test]
        fn any_text_is_a_list_or_none(text in "(ah-kept 1\n)?((pack|loose|what) ?[a-f0-9/.-]{0,44}( [0-9]{0,22})?\n){0,4}") {
            if let Some(list) = List::decode(text.as_bytes()) {
                prop_assert_eq!(list.packs.keys().any(|name| name.contains('/')), false);
            }
        }
    }
}
