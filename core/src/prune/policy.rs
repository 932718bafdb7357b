//! Retention policies as text: `keep-last=50,keep-within=7d,max-size=5G`. One language for snapshots and for recordings, which know fewer rules.

use std::fmt;

use ah_plugin_api::{Error, ErrorKind, Result};

use crate::config::parse_size;
use crate::refs::parse_duration;

/// What holds where nobody said anything: a person's own stays, what was taken automatically is thinned.
pub(crate) const DEFAULT: &str = "keep-within=24h,keep-pinning=24h,keep-prompts=14d,keep-manual";

/// As [`DEFAULT`], of recordings.
pub(crate) const DEFAULT_RECORDINGS: &str = "max-size=2G";

/// What rules there are.
const RULES: &str = "rules: keep-last=N, keep-last=N/session, keep-within=7d, keep-pinning=24h, keep-prompts=14d, keep-hourly=N, keep-daily=N, keep-weekly=N, \
                     keep-labelled, keep-manual, max-size=5G, max-size=1G/session";

/// What stays. A snapshot stays if any of the rules says so; `max-size` then takes the oldest of those that nothing protects.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Policy {
    /// The latest so many.
    pub(crate) last: Option<u64>,
    /// The latest so many of each session.
    pub(crate) last_of_session: Option<u64>,
    /// Those of the last so many nanoseconds.
    pub(crate) within: Option<i128>,
    /// Those that pin more than the workspace, of the last so many nanoseconds; none: a quarter of `within`.
    pub(crate) pinning: Option<i128>,
    /// One for each prompt of the last so many nanoseconds.
    pub(crate) prompts: Option<i128>,
    /// The latest of each of the last so many hours that have one.
    pub(crate) hourly: Option<u64>,
    /// … days, in UTC.
    pub(crate) daily: Option<u64>,
    /// … weeks.
    pub(crate) weekly: Option<u64>,
    /// Those with a label, but for the one that a branch gives its base.
    pub(crate) labelled: bool,
    /// Those taken or marked by hand.
    pub(crate) manual: bool,
    /// No more bytes than this.
    pub(crate) max_size: Option<u64>,
    /// No more bytes of one session than this.
    pub(crate) max_size_of_session: Option<u64>,
    text: String,
}

impl Policy {
    /// Reads a policy.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let bad = |rule: &str, why: &str| {
            Error::new(ErrorKind::InvalidArgument, format!("{rule:?} is not a rule of a retention policy: {why}"))
                .with_hint(RULES)
        };
        let mut policy = Self { text: String::new(), ..Self::default() };
        let mut rules = Vec::new();
        for rule in text.split(',').map(str::trim).filter(|rule| !rule.is_empty()) {
            let (name, value) =
                rule.split_once('=').map_or((rule, None), |(name, value)| (name.trim(), Some(value.trim())));
            let (value, of_session) = match value.and_then(|value| value.strip_suffix("/session")) {
                Some(value) => (Some(value.trim_end()), true),
                None => (value, false),
            };
            if of_session && !matches!(name, "keep-last" | "max-size") {
                return Err(bad(rule, "only keep-last and max-size can be meant for each session"));
            }
            let number =
                || value.and_then(|value| value.parse::<u64>().ok()).ok_or_else(|| bad(rule, "it needs a number"));
            let time = || value.and_then(parse_duration).ok_or_else(|| bad(rule, "it needs a time like 7d or 12h"));
            let size = || {
                value.and_then(parse_size).ok_or_else(|| bad(rule, "it needs a size with its unit, like 5G or 500M"))
            };
            let twice = match name {
                "keep-last" if of_session => policy.last_of_session.replace(number()?).is_some(),
                "max-size" if of_session => policy.max_size_of_session.replace(size()?).is_some(),
                "keep-pinning" => policy.pinning.replace(time()?).is_some(),
                "keep-prompts" => policy.prompts.replace(time()?).is_some(),
                "keep-last" => policy.last.replace(number()?).is_some(),
                "keep-hourly" => policy.hourly.replace(number()?).is_some(),
                "keep-daily" => policy.daily.replace(number()?).is_some(),
                "keep-weekly" => policy.weekly.replace(number()?).is_some(),
                "keep-within" => policy.within.replace(time()?).is_some(),
                "max-size" => policy.max_size.replace(size()?).is_some(),
                "keep-labelled" if value.is_none() => std::mem::replace(&mut policy.labelled, true),
                "keep-manual" if value.is_none() => std::mem::replace(&mut policy.manual, true),
                "keep-labelled" | "keep-manual" => return Err(bad(rule, "it takes no value")),
                _ => return Err(bad(rule, "it is not known")),
            };
            if twice {
                return Err(bad(rule, "it is there twice"));
            }
            let scope = if of_session { "/session" } else { "" };
            rules.push(value.map_or_else(|| name.to_owned(), |value| format!("{name}={value}{scope}")));
        }
        if rules.is_empty() {
            return Err(bad(text, "there is none"));
        }
        policy.text = rules.join(",");
        Ok(policy)
    }

    /// Reads a policy for recordings: without the rules that say something of snapshots only.
    pub(crate) fn parse_for_recordings(text: &str) -> Result<Self> {
        let policy = Self::parse(text)?;
        let others = policy.hourly.is_some()
            || policy.daily.is_some()
            || policy.weekly.is_some()
            || policy.prompts.is_some()
            || policy.pinning.is_some()
            || policy.labelled
            || policy.manual;
        if others {
            let message = format!("{text:?} has rules that mean nothing for recordings");
            return Err(Error::new(ErrorKind::InvalidArgument, message).with_hint(
                "rules for recordings: keep-last=N, keep-last=N/session, keep-within=7d, max-size=5G, max-size=1G/session",
            ));
        }
        Ok(policy)
    }

    /// With what is kept for its youth alone kept for so many nanoseconds at most.
    pub(crate) fn tightened(mut self, nanos: i128) -> Self {
        self.within = self.within.map(|within| within.min(nanos));
        self.pinning = self.pinning.map(|pinning| pinning.min(nanos));
        self
    }

    /// Whether there is a rule about bytes.
    pub(crate) fn limits_size(&self) -> bool {
        self.max_size.is_some() || self.max_size_of_session.is_some()
    }

    /// Whether any rule keeps something; without one, only `max-size` removes.
    pub(crate) fn keeps_by_rule(&self) -> bool {
        self.last.is_some()
            || self.last_of_session.is_some()
            || self.within.is_some()
            || self.pinning.is_some()
            || self.prompts.is_some()
            || self.hourly.is_some()
            || self.daily.is_some()
            || self.weekly.is_some()
            || self.labelled
            || self.manual
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::Policy;
    use proptest::prelude::{any, proptest};

    #[test]
    fn policies_are_read() {
        let policy = Policy::parse(" keep-last=50, keep-within = 7d,max-size=5G,keep-labelled ").unwrap();
        assert_eq!((policy.last, policy.max_size, policy.labelled), (Some(50), Some(5 << 30), true));
        assert_eq!(policy.within, Some(7 * 86_400 * 1_000_000_000));
        assert_eq!(policy.to_string(), "keep-last=50,keep-within=7d,max-size=5G,keep-labelled");
        assert_eq!(Policy::parse(&policy.to_string()).unwrap(), policy);
        for bad in [
            "",
            ",",
            "keep-last",
            "keep-last=x",
            "keep-last=-1",
            "keep-all=1",
            "keep-last=1,keep-last=2",
            "keep-manual=1",
            "max-size=1d",
            "keep-within=7d/session",
            "keep-last=/session",
            "keep-last=2/session,keep-last=3/session",
            "keep-prompts=2",
        ] {
            assert!(Policy::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn of_each_session_and_overall() {
        let text = "keep-last=9,keep-last=2/session,max-size=5G,max-size=1G/session,keep-prompts=14d";
        let policy = Policy::parse(text).unwrap();
        assert_eq!((policy.last, policy.last_of_session), (Some(9), Some(2)));
        assert_eq!((policy.max_size, policy.max_size_of_session), (Some(5 << 30), Some(1 << 30)));
        assert_eq!(policy.to_string(), text);
    }

    #[test]
    fn of_recordings() {
        assert!(Policy::parse_for_recordings("keep-last=3/session,keep-within=7d,max-size=1G").is_ok());
        for bad in ["keep-manual", "keep-prompts=1d", "keep-within=7d,keep-hourly=3"] {
            assert!(Policy::parse_for_recordings(bad).is_err(), "{bad}");
        }
        assert!(Policy::parse(super::DEFAULT).is_ok());
        assert!(Policy::parse_for_recordings(super::DEFAULT_RECORDINGS).is_ok());
    }

    proptest! {
        #[test]
        fn any_text_is_no_panic(text in any::<String>()) {
            let _ = Policy::parse(&text);
        }
    }
}
