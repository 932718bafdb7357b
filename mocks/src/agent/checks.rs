//! What a scenario says must be so: files, and what `ah` says about timeline, snapshots and branches.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::start::Options;
use crate::scenario::{AhSays, Check, FileIs};

/// How long it may take if the scenario does not say: captures run behind hooks.
const WITHIN: u64 = 5000;

/// Whether all of it is so, within its time; else what is not.
pub(super) fn check(check: &Check, options: &Options) -> Result<(), String> {
    let until = Instant::now() + Duration::from_millis(check.within_ms.unwrap_or(WITHIN));
    loop {
        let faults = faults(check, options);
        if faults.is_empty() {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(faults.join("; "));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn faults(check: &Check, options: &Options) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, wanted) in &check.files {
        let found = fs::read(options.cwd.join(name)).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let fault = match (wanted, &found) {
            (FileIs::Exists(wanted), found) if *wanted == found.is_some() => continue,
            (FileIs::Is(wanted), Some(found)) if found == wanted => continue,
            (FileIs::Contains(part), Some(found)) if found.contains(part) => continue,
            (_, None) => format!("{name} is not there"),
            (_, Some(found)) => format!("{name} is {found:?}"),
        };
        faults.push(fault);
    }
    faults.extend(check.ah.iter().filter_map(|says| said(says, options).err()));
    faults
}

fn said(says: &AhSays, options: &Options) -> Result<(), String> {
    let command = format!("ah {}", says.run.join(" "));
    let ran = Command::new("ah")
        .args(&says.run)
        .arg("--json")
        .envs(options.environment.iter().map(|(name, value)| (name, value)))
        .current_dir(&options.cwd)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{command}: {error}"))?;
    let failed = |what: &str| format!("{command}: {what}: {}", String::from_utf8_lossy(&ran.stderr).trim());
    let answer: Value = serde_json::from_slice(&ran.stdout).map_err(|error| failed(&error.to_string()))?;
    let list = answer.pointer(&says.at).and_then(Value::as_array);
    let list = list.ok_or_else(|| failed(&format!("no list at {:?}", says.at)))?;
    let null = Value::Null;
    let has = |entry: &Value| says.with.iter().all(|(name, wanted)| entry.get(name).unwrap_or(&null) == wanted);
    let found: Vec<&Value> = list.iter().filter(|entry| has(entry)).collect();
    let count = found.len();
    if says.count.is_some_and(|wanted| wanted != count) || says.at_least.is_some_and(|least| count < least) {
        return Err(format!("{command}: {count} of {} at {} fit", list.len(), says.at));
    }
    if let Some((member, wanted)) = &says.each {
        let is: Vec<Value> = found.iter().map(|entry| entry.get(member).cloned().unwrap_or_default()).collect();
        if is != *wanted {
            return Err(format!("{command}: {member} at {} is {}", says.at, Value::Array(is)));
        }
    }
    Ok(())
}
