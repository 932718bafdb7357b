//! Large input, in bounded memory. One test, since the memory asked about is the whole process's.

#![allow(clippy::unwrap_used)]

use std::io::{BufWriter, Read, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use ah_agents::hook;
use ah_agents::transcript::{Destination, position_now, prompts, trim};
use ah_agents::{Agent, Home};

/// Times hold for optimised builds, where the transcript has 100 MB.
const MEGABYTES: usize = if cfg!(debug_assertions) { 20 } else { 100 };

/// The most memory that this process ever held, in KiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// A transcript with prompts, calls and results, and now and then an image.
fn write(file: &Path) -> u64 {
    let mut out = BufWriter::new(std::fs::File::create(file).unwrap());
    let (mut size, mut serial, mut parent) = (0, 0_u64, "null".to_owned());
    let text = "x".repeat(1500);
    let image = "A".repeat(1 << 20);
    while size < MEGABYTES << 20 {
        let image = if serial.is_multiple_of(3000) { image.as_str() } else { "" };
        for (kind, content) in [
            (
                "user",
                format!(
                    r#"[{{"type":"image","source":{{"type":"base64","data":"{image}"}}}},{{"type":"text","text":"prompt"}}]"#
                ),
            ),
            (
                "assistant",
                format!(r#"[{{"type":"tool_use","id":"t{serial}","name":"Bash","input":{{"command":"{text}"}}}}]"#),
            ),
            ("user", format!(r#"[{{"type":"tool_result","tool_use_id":"t{serial}","content":"{text}"}}]"#)),
        ] {
            serial += 1;
            let uuid = format!("\"{serial:08x}-0000-4000-8000-000000000000\"");
            let line = format!(
                r#"{{"parentUuid":{parent},"isSidechain":false,"type":"{kind}","message":{{"role":"{kind}","content":{content}}},"uuid":{uuid},"timestamp":"2026-01-01T00:00:00.000Z","sessionId":"old"}}"#
            );
            size += line.len() + 1;
            writeln!(out, "{line}").unwrap();
            parent = uuid;
        }
    }
    out.flush().unwrap();
    serial
}

#[test]
fn large_input_takes_little_memory() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("large.jsonl");
    let lines = write(&file);
    let limit = peak() + 32 * 1024;

    let end = position_now(Agent::Claude, &file, None).unwrap();
    assert_eq!(end.line, lines);
    let home = Home::plain(dir.path(), "");
    let to = Destination { home: &home, cwd: Path::new("/branch") };
    let copy = trim(Agent::Claude, &end, &to, "99999999-9999-4999-8999-999999999999", true).unwrap();
    assert_eq!((copy.lines, copy.dropped), (lines, 0));
    assert_eq!(prompts(Agent::Claude, &file, None).unwrap().count() as u64, lines / 3);

    let head: &[u8] = br#"{"hook_event_name":"PostToolUse","session_id":"s","cwd":"/w","tool_response":""#;
    let event =
        hook::read(Agent::Claude, head.chain(std::io::repeat(b'x').take(50 << 20)).chain(br#""}"#.as_slice())).unwrap();
    assert_eq!(event.session_id, "s");

    assert!(peak() < limit, "{} KiB at most, of {limit}", peak());

    // A line that is longer than any agent writes is said to be so, not taken into memory whole.
    std::fs::File::create(&file).unwrap().set_len(ah_agents::transcript::LONGEST_LINE as u64 + 10).unwrap();
    let error = prompts(Agent::Claude, &file, None).unwrap().next().unwrap().unwrap_err();
    assert_eq!(error.kind, ah_plugin_api::ErrorKind::Unsupported);

    // And one without an end is not read to its end at each call: what is behind cannot be seen any more.
    let mut odd = std::fs::File::create(&file).unwrap();
    odd.write_all(b"{}\n").unwrap();
    odd.seek(SeekFrom::End(ah_agents::transcript::LONGEST_LINE as i64 + (1 << 20))).unwrap();
    odd.write_all(b"\n{}\n").unwrap();
    let place = position_now(Agent::Claude, &file, None).unwrap();
    assert_eq!((place.line, place.offset), (1, 3));

    // Nor is one that is larger than any: it is come nearer to its end with each call, as each is waited for.
    let mut larger = std::fs::File::create(&file).unwrap();
    let ends = [50, 100, 150, 200].map(|mib| mib << 20);
    for end in ends {
        larger.seek(SeekFrom::Start(end - 1)).unwrap();
        larger.write_all(b"\n").unwrap();
    }
    let first = position_now(Agent::Claude, &file, None).unwrap();
    assert_eq!((first.line, first.offset), (2, ends[1]));
    let end = position_now(Agent::Claude, &file, Some(&first)).unwrap();
    assert_eq!((end.line, end.offset), (4, ends[3]));
}
