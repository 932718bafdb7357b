//! Ids and chance, both from the seed: the same scenario gives the same ids to the mock agent and to the server, whichever
//! requests come first.

/// A number that depends on the seed and a place, and on nothing else.
fn mix(seed: u64, place: &str) -> u64 {
    // FNV-1a spreads the place over the word, the generator does the rest.
    let hash = place
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    fastrand::Rng::with_seed(seed ^ hash).u64(..)
}

/// An id with a prefix, as the services make them: `toolu_…`, `msg_…`, `call_…`.
#[must_use]
pub fn id(prefix: &str, seed: u64, place: &str) -> String {
    format!("{prefix}_{:016x}{:08x}", mix(seed, place), mix(seed, &format!("{place}+")) >> 32)
}

/// A UUID of version 4.
#[must_use]
pub fn uuid(seed: u64, place: &str) -> String {
    let (high, low) = (mix(seed, place), mix(seed, &format!("{place}+")));
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xfff,
        0x8000 | (low >> 48) & 0x3fff,
        low & 0xffff_ffff_ffff,
    )
}

/// Chance for one run.
#[must_use]
pub fn chance(seed: u64) -> fastrand::Rng {
    fastrand::Rng::with_seed(seed)
}

#[cfg(test)]
mod tests {
    #[test]
    fn ids_depend_on_seed_and_place_only() {
        assert_eq!(super::uuid(1, "a"), super::uuid(1, "a"));
        assert_ne!(super::uuid(1, "a"), super::uuid(2, "a"));
        assert_ne!(super::uuid(1, "a"), super::uuid(1, "b"));
        let uuid = super::uuid(7, "session");
        assert_eq!((uuid.len(), &uuid[14..15]), (36, "4"));
        assert!(super::id("toolu", 1, "x").starts_with("toolu_"));
    }
}
