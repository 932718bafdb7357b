//! Times for people: relative, then local. For programs they are RFC 3339, which `ah_core::text` writes.

use ah_plugin_api::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;

/// `2026-11-21 09:30:00` in the local time zone; in an hour that comes twice, when clocks are set back, `2026-10-25 02:10:00 +02:00`.
pub(crate) fn local(time: Timestamp) -> String {
    local_in(time, TimeZone::system())
}

fn local_in(time: Timestamp, zone: TimeZone) -> String {
    let Some(instant) = instant(time) else { return ah_core::text::format_time(time) };
    let time = instant.to_zoned(zone);
    let comes_twice = time.time_zone().to_ambiguous_zoned(time.datetime()).is_ambiguous();
    time.strftime(if comes_twice { WITH_OFFSET } else { "%Y-%m-%d %H:%M:%S" }).to_string()
}

/// The blank before the offset tells it from RFC 3339, where a second does not count to its end.
const WITH_OFFSET: &str = "%Y-%m-%d %H:%M:%S %:z";

/// Reads what [`local`] writes, also with a `T` in it, without seconds, and a date alone. A second counts to its end, so that the time that is
/// shown for a snapshot names that snapshot; a minute and a date are their first moments.
pub(crate) fn read_local(text: &str) -> Option<Timestamp> {
    if let Ok(time) = jiff::Timestamp::strptime(WITH_OFFSET, text) {
        return Some(Timestamp { secs: time.as_second(), nanos: 999_999_999 });
    }
    let read = |forms: [&str; 2]| forms.iter().find_map(|form| DateTime::strptime(form, text).ok());
    let second = read(["%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S"]).map(|time| (time, 999_999_999));
    let minute = || read(["%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M"]).map(|time| (time, 0));
    let date = || Some((Date::strptime("%Y-%m-%d", text).ok()?.to_datetime(jiff::civil::Time::midnight()), 0));
    let (time, nanos) = second.or_else(minute).or_else(date)?;
    Some(Timestamp { secs: instant_of(time, &TimeZone::system())?, nanos })
}

/// Of an hour that comes twice, when clocks are set back, the second one, so that what was taken in it can be named; the first has its offset where it is shown.
fn instant_of(time: DateTime, zone: &TimeZone) -> Option<i64> {
    Some(zone.to_ambiguous_zoned(time).later().ok()?.timestamp().as_second())
}

/// `just now`, `5 min ago`, `3 h ago`, then the local date.
pub(crate) fn relative(time: Timestamp, now: Timestamp) -> String {
    match now.secs.saturating_sub(time.secs) {
        // A clock that was set back is no reason to speak of the future for a few seconds.
        -5..=4 => "just now".to_owned(),
        seconds @ 5..60 => format!("{seconds} s ago"),
        seconds @ 60..3_600 => format!("{} min ago", seconds / 60),
        seconds @ 3_600..86_400 => format!("{} h ago", seconds / 3_600),
        seconds @ 86_400..604_800 => format!("{} d ago", seconds / 86_400),
        _ => local(time),
    }
}

/// `2026-11-21 09:30:00 (5 min ago)`.
pub(crate) fn both(time: Timestamp, now: Timestamp) -> String {
    let (local, relative) = (local(time), relative(time, now));
    if local == relative { local } else { format!("{local} ({relative})") }
}

fn instant(time: Timestamp) -> Option<jiff::Timestamp> {
    jiff::Timestamp::new(time.secs, i32::try_from(time.nanos).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> Timestamp {
        Timestamp { secs, nanos: 0 }
    }

    #[test]
    fn local_times_are_read_as_they_are_written() {
        let read = |text: &str| read_local(text).map(|time| (time.secs, time.nanos));
        let (secs, nanos) = read(&local(at(1_000_000))).unwrap();
        assert_eq!((secs, nanos), (1_000_000, 999_999_999));
        assert_eq!(read("2026-11-21T11:18:00"), read("2026-11-21 11:18:00"));
        assert_eq!(local(read_local("2026-11-21").unwrap()), "2026-11-21 00:00:00");
        let (second, minute) = (read("2026-11-21 11:18:00").unwrap(), read("2026-11-21 11:18").unwrap());
        assert_eq!((minute, read("2026-11-21T11:18")), ((second.0, 0), Some(minute)));
        for other in [
            "",
            "2026-11-21 ",
            "2026-13-01",
            "2026-11-21x",
            "20",
            "before 2026-11-21",
            "2026-11-21 25:00:00",
            "2026-11-21 11",
            "2026-11-21 11:",
            "2026-11-21 09:30:00 +",
            "2026-11-21 09:30:00 02:00",
        ] {
            assert_eq!(read(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_time_that_comes_twice_is_the_second() {
        let berlin = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        let told = |text: &str| instant_of(DateTime::strptime("%Y-%m-%d %H:%M:%S", text).unwrap(), &berlin).unwrap();
        let second: jiff::Timestamp = "2026-10-25T01:10:00Z".parse().unwrap();
        assert_eq!(told("2026-10-25 02:10:00"), second.as_second());
        assert_eq!(told("2026-10-25 03:10:00") - told("2026-10-25 01:10:00"), 3 * 3600);
        // Shown, the two are told apart, and read again.
        for (secs, shown) in [(told("2026-10-25 02:10:00"), "+01:00"), (told("2026-10-25 02:10:00") - 3600, "+02:00")] {
            let text = local_in(at(secs), berlin.clone());
            assert_eq!(text, format!("2026-10-25 02:10:00 {shown}"));
            assert_eq!(read_local(&text), Some(Timestamp { secs, nanos: 999_999_999 }));
        }
        assert_eq!(local_in(at(told("2026-10-25 03:00:00")), berlin.clone()), "2026-10-25 03:00:00");
        // One that is left out comes an hour later.
        assert_eq!(told("2026-03-29 02:10:00"), told("2026-03-29 03:10:00"));
    }

    #[test]
    fn relative_times() {
        let now = at(1_000_000);
        assert_eq!(relative(at(1_000_003), now), "just now");
        assert_eq!(relative(at(999_990), now), "10 s ago");
        assert_eq!(relative(at(999_700), now), "5 min ago");
        assert_eq!(relative(at(992_800), now), "2 h ago");
        assert_eq!(relative(at(800_000), now), "2 d ago");
    }
}
