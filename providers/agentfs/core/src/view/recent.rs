//! The few directories below of which something was asked last: one name is asked after the other, in several directories at once.

use std::collections::VecDeque;

/// Directories of which it is remembered: what is remembered of each can take some MiB.
const MOST: usize = 4;

/// What was found out of directories, by their paths; the latest first.
pub(super) struct Recent<T>(VecDeque<(Box<[u8]>, T)>);

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T: Clone> Recent<T> {
    pub(super) fn get(&mut self, path: &[u8]) -> Option<T> {
        let at = self.0.iter().position(|(known, _)| **known == *path)?;
        if at > 0 {
            let known = self.0.remove(at)?;
            self.0.push_front(known);
        }
        self.0.front().map(|(_, what)| what.clone())
    }

    pub(super) fn put(&mut self, path: &[u8], what: T) {
        self.0.retain(|(known, _)| **known != *path);
        self.0.truncate(MOST - 1);
        self.0.push_front((path.into(), what));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_few_are_known() {
        let mut recent = Recent::default();
        for nth in 0..=MOST as u8 {
            recent.put(&[nth], nth);
            assert_eq!(recent.get(&[1]), Some(1).filter(|_| nth >= 1));
        }
        assert_eq!((recent.get(&[0]), recent.get(&[1]), recent.get(&[2])), (None, Some(1), Some(2)));
        recent.put(&[1], 9);
        assert_eq!((recent.get(&[1]), recent.0.len()), (Some(9), MOST));
    }
}
