//! What the folder is called in which a restore prepares files, at the top of a workspace.

/// What its name begins with; the restore's id follows.
pub const STAGING_PREFIX: &str = ".ah-restore-";

/// Whether a name at the top of a workspace is one of these: the beginning, and an id of twelve letters from `k` to `z`. Anything
/// else that begins so is the user's.
#[must_use]
pub fn is_staging(name: &[u8]) -> bool {
    let id = name.strip_prefix(STAGING_PREFIX.as_bytes());
    id.is_some_and(|id| id.len() == 12 && id.iter().all(|letter| (b'k'..=b'z').contains(letter)))
}

#[cfg(test)]
mod tests {
    use super::is_staging;

    #[test]
    fn only_our_own_form_counts() {
        assert!(is_staging(b".ah-restore-kkkkzzzzkkkk"));
        for users in ["", "notes", "kkkkzzzzkkk", "kkkkzzzzkkkkk", "kkkkzzzzkkka", "KKKKZZZZKKKK"] {
            assert!(!is_staging(format!(".ah-restore-{users}").as_bytes()), "{users}");
        }
        assert!(!is_staging(b"kkkkzzzzkkkk"));
    }
}
