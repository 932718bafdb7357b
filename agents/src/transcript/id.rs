//! Ids of new sessions.

use std::fmt::Write as _;

use ah_plugin_api::{Error, ErrorKind, Result, Timestamp};

use crate::Agent;

/// An id for a new session of `agent`, of `random` bytes from the kernel and the present time.
///
/// Claude Code and Gemini CLI use UUIDs of version 4, Codex of version 7, whose first half is the time.
#[must_use]
pub fn new_session_id(agent: Agent, random: [u8; 16], now: Timestamp) -> String {
    let mut bytes = random;
    let version = match agent {
        Agent::Codex => {
            let millis = now.secs.saturating_mul(1000).saturating_add(i64::from(now.nanos / 1_000_000)).max(0);
            bytes[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
            0x70
        }
        Agent::Claude | Agent::Gemini | Agent::Opencode => 0x40,
    };
    bytes[6] = bytes[6] & 0x0f | version;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut text = String::with_capacity(36);
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// That `id` is a UUID in its usual form; it becomes part of a file's name and of every line.
pub(super) fn check(id: &str) -> Result<()> {
    let ok = id.len() == 36
        && id.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
        });
    if ok {
        Ok(())
    } else {
        Err(Error::new(ErrorKind::InvalidArgument, format!("{id:?} is not a session id (a UUID)")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_uuids_of_the_agents_version() {
        let now = Timestamp { secs: 1_784_000_000, nanos: 123_000_000 };
        for agent in Agent::ALL {
            let id = new_session_id(agent, [0xff; 16], now);
            check(&id).unwrap();
            assert_eq!(&id[14..15], if agent == Agent::Codex { "7" } else { "4" });
            assert_eq!(&id[19..20], "b");
        }
        let id = new_session_id(Agent::Codex, [0; 16], now);
        let millis = i64::from_str_radix(&id[..13].replace('-', ""), 16).unwrap();
        assert_eq!(millis, 1_784_000_000_123);
    }

    #[test]
    fn what_is_no_uuid_is_refused() {
        for id in [
            "",
            "x",
            "../../../../../../../../../../etc/passwd",
            "0000000000000-0000-0000-0000-0000000",
            &"a".repeat(36),
        ] {
            assert_eq!(check(id).unwrap_err().kind, ErrorKind::InvalidArgument);
        }
    }
}
