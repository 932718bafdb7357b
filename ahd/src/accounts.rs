//! Whose limits a user id counts against.
//!
//! A person may have thousands of ids for use in user namespaces of their own (subuid(5)), and a process with any of these can connect like any other.
//! What all of them have and do counts as one user's, or the limits would be none.

use std::str::FromStr;
use std::sync::OnceLock;

use nix::unistd::User;

/// The account of an id: that of whom it was given to, or its own.
pub(crate) fn of(uid: u32) -> u32 {
    static ACCOUNTS: OnceLock<Accounts> = OnceLock::new();
    ACCOUNTS.get_or_init(Accounts::read).of(uid)
}

/// Who was given which ids.
#[derive(Debug, Default)]
struct Accounts(Vec<Range>);

#[derive(Debug)]
struct Range {
    owner: u32,
    first: u32,
    count: u32,
}

impl Accounts {
    /// Reads `/etc/subuid`, once. Ids that are given in another way, or later, count each for itself.
    fn read() -> Self {
        // What the tests count does not go by the machine that they run on.
        if cfg!(test) {
            return Self::parse("1:4000000:1000");
        }
        Self::parse(&String::from_utf8_lossy(&std::fs::read("/etc/subuid").unwrap_or_default()))
    }

    fn parse(text: &str) -> Self {
        let named = |name: &str| User::from_name(name).ok().flatten().map(|user| user.uid.as_raw());
        let range = |line: &str| {
            let mut fields = line.split(':').map(str::trim);
            let (name, first, count) = (fields.next()?, fields.next()?, fields.next()?);
            let number = |text| u32::from_str(text).ok();
            Some(Range { owner: number(name).or_else(|| named(name))?, first: number(first)?, count: number(count)? })
        };
        // What root gives to its containers shall not use up what is root's own.
        Self(text.lines().filter_map(range).filter(|range| range.owner != 0).collect())
    }

    fn of(&self, uid: u32) -> u32 {
        let given = |range: &&Range| uid.checked_sub(range.first).is_some_and(|at| at < range.count);
        self.0.iter().find(given).filter(|_| uid != 0).map_or(uid, |range| range.owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_were_given_to_somebody_count_as_theirs() {
        let text = "1000:100000:65536\nroot:165536:10\n# nothing\nno-such-user-here:1:9\n1001:5:x\n\n7:0:5";
        let accounts = Accounts::parse(text);
        for (uid, account) in [(100_000, 1000), (165_535, 1000), (165_536, 165_536), (99_999, 99_999), (0, 0), (3, 7)] {
            assert_eq!(accounts.of(uid), account, "{uid}");
        }
        assert_eq!((accounts.of(5), accounts.of(u32::MAX)), (5, u32::MAX));
        assert_eq!((of(4_000_999), of(4_001_000)), (1, 4_001_000));
    }
}
