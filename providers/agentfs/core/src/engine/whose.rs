//! Whose blocks are lost, for a person: the paths of the files, and in which branches and snapshots that is.

use std::collections::{BTreeMap, BTreeSet};

use super::fsck::{Reading, Report};
use crate::engine::{Engine, LOWER};
use crate::error::Result;
use crate::read_lock;
use crate::rows::chunk::Chunk;
use crate::rows::key::{self, Epoch};
use crate::rows::value::Entry;
use crate::state::{State, View};
use crate::types::{Ino, ROOT};

/// So many places are told at most.
const MOST: usize = 1000;

impl Engine {
    /// `lost`: runs of a first block and an end. Costs what reading all rows costs, and all names of each branch and snapshot in which something is lost.
    pub(super) fn tell_whose(&self, lost: &[(u64, u64)], report: &mut Report) -> Result<()> {
        let lost = joined(lost);
        let is_one = |block| {
            let next = lost.partition_point(|&(first, _)| first <= block);
            next > 0 && block < lost[next - 1].1
        };
        let is_lost = |row: &[u8]| Chunk::decode(row).is_ok_and(|chunk| chunk.stored().any(|(block, _)| is_one(block)));
        let state = read_lock(&self.state);
        let mut inodes = BTreeSet::new();
        // What cannot be read was told before.
        let mut reading = Reading::of(&state, b'c');
        while let Some((row, value)) = reading.next(&mut Report::default())? {
            if is_lost(&value) {
                inodes.insert(key::number(&row));
            }
        }
        let mut told = 0;
        for (&line, of) in &state.lines {
            let chain = state.chain(line)?;
            for until in of.points.keys().copied().chain(of.pen.then_some(Epoch::MAX)) {
                let view = View { line, until, chain: &chain };
                let has_lost = |ino: &u64| {
                    state.all_seen(&key::stem(b'c', *ino), view).is_ok_and(|rows| rows.values().any(|row| is_lost(row)))
                };
                let concerned: Vec<_> = inodes.iter().copied().filter(has_lost).collect();
                if concerned.is_empty() {
                    continue;
                }
                let above = above(&state, view);
                let of = |(id, _): (&u64, _)| format!("snapshot {id}");
                let taken = state.snapshots.iter().find(|(_, of)| (of.line, of.epoch) == (line, until));
                let place = taken.map_or_else(|| format!("branch {line}"), of);
                for ino in concerned {
                    told += 1;
                    if told <= MOST {
                        report.lost(format!("contents of {} are lost in {place}", path(&above, ino)));
                    }
                }
            }
        }
        if told > MOST {
            report.lost(format!("and so it is in {} places more", told - MOST));
        }
        Ok(())
    }
}

/// The same runs in order, none of which touches the next.
fn joined(runs: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut runs = runs.to_vec();
    runs.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (first, end) in runs {
        match joined.last_mut() {
            Some((_, last)) if first <= *last => *last = end.max(*last),
            _ => joined.push((first, end)),
        }
    }
    joined
}

/// Of each inode that has a name in that state of the tree one of them, and the directory in which it is.
fn above(state: &State, view: View<'_>) -> BTreeMap<Ino, (Ino, Vec<u8>)> {
    let names = state.all_seen(b"d", view).unwrap_or_default();
    let of = |(stem, value): (Vec<u8>, _)| {
        let entry = Entry::decode(value).ok()??;
        let name = stem.get(9..stem.len().checked_sub(1)?)?.to_vec();
        Some((entry.ino, (key::number(&stem), name)))
    };
    names.iter().filter_map(|(stem, value)| of((stem.clone(), value))).collect()
}

/// As far as names are written here: those below an unchanged directory are not.
fn path(above: &BTreeMap<Ino, (Ino, Vec<u8>)>, of: Ino) -> String {
    let (mut parts, mut at) = (Vec::new(), of);
    while at != ROOT && parts.len() < 1000 {
        let Some((parent, name)) = above.get(&at) else { break };
        parts.push(String::from_utf8_lossy(name).into_owned());
        at = *parent;
    }
    if at != ROOT {
        parts.push(format!("(inode {})", at & (LOWER - 1)));
    }
    parts.reverse();
    parts.join("/")
}
