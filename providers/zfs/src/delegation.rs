//! What `zfs allow` lets an ordinary user do to a dataset.
//!
//! The module decides when it is asked; this is for saying beforehand. The lists have one entry for each dataset on the way up that
//! bears permissions, in it one for each party: `ul$1000` for user 1000 on the dataset itself, `ud$1000` on those below it, `g` for
//! groups, `e` for everyone; capital letters hold names of sets, `s-$@name` what a set holds. Source: zfs_deleg.h.

use std::collections::BTreeSet;

use crate::sys::Value;

type Lists = std::collections::BTreeMap<Vec<u8>, Value>;

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Party {
    uid: u32,
    groups: Vec<u32>,
}

impl Party {
    /// This process.
    pub(crate) fn present() -> Self {
        let mut groups: Vec<u32> =
            rustix::process::getgroups().unwrap_or_default().iter().map(|g| g.as_raw()).collect();
        groups.push(rustix::process::getegid().as_raw());
        Self { uid: rustix::process::geteuid().as_raw(), groups }
    }

    /// The keys under which something is given to this party, as `inherited` (`l` or `d`), in sets or not.
    fn keys(&self, inherited: char, sets: bool) -> Vec<Vec<u8>> {
        let letter = |letter: char| if sets { letter.to_ascii_uppercase() } else { letter };
        let mut keys = vec![
            format!("{}{inherited}${}", letter('u'), self.uid).into_bytes(),
            format!("{}{inherited}$", letter('e')).into_bytes(),
        ];
        keys.extend(self.groups.iter().map(|gid| format!("{}{inherited}${gid}", letter('g')).into_bytes()));
        keys
    }
}

/// What the party may do to `dataset`, by the lists of it and of those above.
pub(crate) fn permissions(lists: &Lists, dataset: &str, party: &Party) -> BTreeSet<String> {
    let (mut found, mut sets) = (BTreeSet::new(), BTreeSet::new());
    let names = |list: Option<&Value>| -> Vec<String> {
        let keys = list.and_then(Value::list).into_iter().flat_map(|list| list.keys());
        keys.map(|key| String::from_utf8_lossy(key).into_owned()).collect()
    };
    for (bearer, list) in lists {
        let Some(list) = list.list() else { continue };
        let inherited = match dataset.as_bytes().strip_prefix(bearer.as_slice()) {
            Some([]) => 'l',
            Some([b'/', ..]) => 'd',
            _ => continue,
        };
        party.keys(inherited, false).iter().for_each(|key| found.extend(names(list.get(key))));
        party.keys(inherited, true).iter().for_each(|key| sets.extend(names(list.get(key))));
    }
    // A set may hold others.
    let mut seen = BTreeSet::new();
    while let Some(set) = sets.pop_first() {
        if !seen.insert(set.clone()) {
            continue;
        }
        for list in lists.values().filter_map(Value::list) {
            found.extend(names(list.get(format!("s-${set}").as_bytes())));
            sets.extend(names(list.get(format!("S-${set}").as_bytes())));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(&str, Value)]) -> Value {
        Value::List(entries.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.clone())).collect())
    }

    fn flags(names: &[&str]) -> Value {
        list(&names.iter().map(|name| (*name, Value::Flag)).collect::<Vec<_>>())
    }

    #[test]
    fn what_is_given_here_and_above_is_told_apart() {
        let lists = list(&[
            (
                "tank",
                list(&[
                    ("ul$1000", flags(&["create"])),
                    ("ud$1000", flags(&["snapshot"])),
                    ("ed$", flags(&["hold"])),
                    ("Gd$50", flags(&["@removers"])),
                    ("s-$@removers", flags(&["destroy"])),
                    ("S-$@removers", flags(&["@more", "@removers"])),
                    ("s-$@more", flags(&["mount"])),
                ]),
            ),
            (
                "tank/a",
                list(&[("ul$1000", flags(&["clone"])), ("ud$1000", flags(&["send"])), ("ul$7", flags(&["diff"]))]),
            ),
        ]);
        let lists = lists.list().unwrap();
        let of = |uid, groups: &[u32], dataset| {
            let found = permissions(lists, dataset, &Party { uid, groups: groups.to_vec() });
            found.into_iter().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of(1000, &[], "tank/a"), "clone hold snapshot");
        assert_eq!(of(1000, &[50], "tank/a"), "clone destroy hold mount snapshot");
        assert_eq!(of(1, &[], "tank/a"), "hold");
        assert_eq!(of(1000, &[], "tank"), "create");
        assert!(Party::present().uid == rustix::process::geteuid().as_raw());
    }
}
