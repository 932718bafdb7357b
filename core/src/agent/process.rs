//! The agent as a process: whose child the hook is.

use std::path::Path;

use ah_agents::{Agent, launch};

use crate::lock::Holder;

/// More ancestors than any process has: an end to each walk upwards, also where `/proc` changes meanwhile.
const ANCESTORS: usize = 1000;
/// Between a hook and its agent stand shells and the like, never more than a few.
const STEPS: usize = 8;
const BETWEEN: &[&str] = &["sh", "bash", "dash", "zsh", "fish", "ksh", "busybox", "env", "timeout", "nice", "ah"];

/// The nearest process above `pid` that is no shell; none if it cannot be told.
pub(super) fn agent_above(pid: u32) -> Option<Holder> {
    let mut pid = pid;
    for _ in 0..STEPS {
        if pid <= 1 {
            return None;
        }
        let (name, parent) = name_and_parent(pid)?;
        if !BETWEEN.contains(&name.as_str()) {
            return Holder::of(pid);
        }
        pid = parent;
    }
    None
}

/// The process by which it can be told whether a session's agent still runs: none where a process serves all of them.
pub(super) fn of_session(agent: Agent, process: &Holder) -> Option<Holder> {
    let words = std::fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
    (!launch::serves_all(agent, words.split(|byte| *byte == 0))).then(|| process.clone())
}

/// The processes of an agent that began after `ticks` of this run of the machine, and are not this one's own: what a tool left
/// running in the background.
pub(super) fn begun_since(agent: &Holder, ticks: u64) -> Vec<Holder> {
    let mut found = Vec::new();
    let mut open = vec![agent.pid];
    while let Some(pid) = open.pop() {
        let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for thread in threads.flatten() {
            let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            for child in children.split_ascii_whitespace().filter_map(|child| child.parse().ok()) {
                let holder = Holder::of(child).filter(|holder| !is_ours(holder.pid));
                match holder {
                    Some(holder) if holder.start >= ticks => found.push(holder),
                    Some(_) if found.len() < 1000 => open.push(child),
                    _ => {}
                }
            }
        }
    }
    found
}

/// Whether this process is that one, or below it.
fn is_ours(pid: u32) -> bool {
    own_and_above().take(STEPS).any(|at| at == pid)
}

/// This process, the one that started it, and so on, as far up as can be seen.
pub(crate) fn own_and_above() -> impl Iterator<Item = u32> {
    let above = |pid: &u32| name_and_parent(*pid).map(|(_, parent)| parent).filter(|parent| *parent > 1);
    std::iter::successors(Some(std::process::id()), above).take(ANCESTORS)
}

/// What `/proc/PID/stat` says of a process.
fn name_and_parent(pid: u32) -> Option<(String, u32)> {
    let stat = std::fs::read(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let (open, close) = (stat.find('(')?, stat.rfind(')')?);
    let parent = stat.get(close + 2..)?.split(' ').nth(1)?.parse().ok()?;
    Some((stat.get(open + 1..close)?.to_owned(), parent))
}

#[cfg(test)]
mod tests {
    use super::{agent_above, begun_since, name_and_parent, own_and_above};
    use crate::lock::Holder;

    #[test]
    fn shells_are_passed_over() {
        let me = std::process::id();
        let (_, parent) = name_and_parent(me).unwrap();
        assert_eq!(parent, std::os::unix::process::parent_id());
        assert_eq!(own_and_above().take(2).collect::<Vec<_>>(), [me, parent]);
        assert_eq!(agent_above(me), Some(Holder::me()), "a test is no shell");
        let mut shell = std::process::Command::new("sh")
            .args(["-c", "read x; true"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        assert_eq!(agent_above(shell.id()), Some(Holder::me()));
        let ours: Vec<u32> = begun_since(&Holder::me(), 0).iter().map(|holder| holder.pid).collect();
        assert!(ours.contains(&shell.id()), "{ours:?}");
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert_eq!(agent_above(0), None);
    }
}
