//! Which part of a tree is asked for: everything, or some paths and what is below them.

use std::sync::Arc;

use ah_plugin_api::RelPath;

/// The part of one directory, met on the way down, that is asked for.
#[derive(Debug, Clone)]
pub(crate) enum Part {
    /// All of it.
    Whole,
    /// What these paths, all of them below this directory, lead to. The number is this directory's depth.
    Some(Arc<[RelPath]>, usize),
}

impl Part {
    /// The root's part, for a list of paths; an empty one means everything.
    pub(crate) fn of(paths: &[RelPath]) -> Self {
        if paths.is_empty() || paths.iter().any(RelPath::is_root) { Self::Whole } else { Self::Some(paths.into(), 0) }
    }

    /// Whether all of it is asked for.
    pub(crate) fn is_whole(&self) -> bool {
        matches!(self, Self::Whole)
    }

    /// The part of the entry `name`; none if nothing of it is asked for.
    pub(crate) fn enter(&self, name: &[u8]) -> Option<Self> {
        let Self::Some(paths, depth) = self else { return Some(Self::Whole) };
        let mut below = Vec::new();
        for path in paths.iter() {
            let mut rest = path.components().skip(*depth);
            if rest.next() != Some(name) {
                continue;
            }
            if rest.next().is_none() {
                return Some(Self::Whole);
            }
            below.push(path.clone());
        }
        (!below.is_empty()).then(|| Self::Some(below.into(), depth + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::Part;
    use ah_plugin_api::RelPath;

    fn part(paths: &[&str]) -> Part {
        Part::of(&paths.iter().map(|path| RelPath::new(*path).unwrap()).collect::<Vec<_>>())
    }

    #[test]
    fn leads_to_the_paths_and_nowhere_else() {
        assert!(part(&[]).enter(b"x").unwrap().is_whole());
        assert!(part(&["a", ""]).is_whole());
        let some = part(&["a/b", "a/c/d", "e"]);
        assert!(some.enter(b"x").is_none());
        assert!(some.enter(b"e").unwrap().is_whole());
        let a = some.enter(b"a").unwrap();
        assert!(!a.is_whole());
        assert!(a.enter(b"b").unwrap().enter(b"anything").unwrap().is_whole());
        let c = a.enter(b"c").unwrap();
        assert!(c.enter(b"d").unwrap().is_whole());
        assert!(c.enter(b"e").is_none());
    }
}
