//! How long what was written may be in memory only, by the kernel's settings.
//!
//! Linux looks every `dirty_writeback_centisecs` for what was written longer than `dirty_expire_centisecs` ago, and begins to write it
//! out. By its own settings that is 35 s; programs that save batteries make it minutes.

/// Nobody is taken at their word for less than this, nanoseconds.
const LEAST: u64 = 40_000_000_000;
/// How long the disk may be busy with what was to be written before: a tenth of a large memory, on a slow disk.
const QUEUE: u64 = 600_000_000_000;

/// How long a page that was written to through a mapping may stay dirty, nanoseconds: until then stores into it change no times. None: for ever.
pub(super) fn until_clean() -> Option<u64> {
    until(setting("dirty_expire_centisecs"), setting("dirty_writeback_centisecs"))
}

/// How long contents may take to come to the disk, nanoseconds, when nobody waits for them. None: for ever.
pub(super) fn until_written() -> Option<u64> {
    until_clean().map(|begun| begun.saturating_add(QUEUE))
}

fn setting(name: &str) -> Option<u64> {
    std::fs::read_to_string(format!("/proc/sys/vm/{name}")).ok()?.trim().parse().ok()
}

fn until(expire: Option<u64>, writeback: Option<u64>) -> Option<u64> {
    let (expire, writeback) = (expire.unwrap_or(3000), writeback.unwrap_or(500));
    let begun = expire.saturating_add(writeback).saturating_add(500).saturating_mul(10_000_000);
    (writeback > 0).then_some(begun.max(LEAST))
}

#[cfg(test)]
mod tests {
    use super::{LEAST, until};

    #[test]
    fn the_settings_count_where_they_make_it_longer() {
        assert_eq!(until(None, None), Some(LEAST));
        assert_eq!(until(Some(3000), Some(500)), Some(LEAST));
        assert_eq!(until(Some(100), Some(100)), Some(LEAST));
        assert_eq!(until(Some(6000), Some(6000)), Some(125_000_000_000));
        assert_eq!(until(Some(3000), Some(0)), None);
        assert_eq!(until(Some(u64::MAX), Some(1)), Some(u64::MAX));
    }
}
