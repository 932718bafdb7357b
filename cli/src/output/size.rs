//! Bytes for people.

/// `0 B`, `999 B`, `1.4 MiB`, `12 GiB`.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
pub(crate) fn human(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value < 10.0 { format!("{value:.1} {}", UNITS[unit]) } else { format!("{value:.0} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::human;

    #[test]
    fn three_digits() {
        assert_eq!(human(0), "0 B");
        assert_eq!(human(1023), "1023 B");
        assert_eq!(human(1024), "1.0 KiB");
        assert_eq!(human(1_468_006), "1.4 MiB");
        assert_eq!(human(1 << 34), "16 GiB");
        assert_eq!(human(u64::MAX), "16 EiB");
    }
}
