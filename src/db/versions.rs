//! The versions of PostgreSQL that Bugle runs on.

/// The oldest major version that has everything Bugle needs.
pub(crate) const OLDEST: u32 = 14;
/// The newest one that the tests run on.
const NEWEST_TESTED: u32 = 18;
/// The newest major version that has reached its end of life, or is about to.
const ENDING: u32 = 14;
/// The end of life of that version.
pub(crate) const END_OF_LIFE: &str = "November 2026";

/// How far Bugle supports a major version of PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Support {
    /// Bugle cannot run on it.
    TooOld,
    /// It is tested, but has reached its end of life.
    Ending,
    /// It is tested.
    Tested,
    /// It is newer than the tested versions. It is accepted, because new versions rarely break what Bugle uses.
    Untested,
}

pub(crate) fn support(major: u32) -> Support {
    match major {
        ..OLDEST => Support::TooOld,
        OLDEST..=ENDING => Support::Ending,
        major if major <= NEWEST_TESTED => Support::Tested,
        _ => Support::Untested,
    }
}

/// The major version in what a server reports as its `server_version`, such as `15.8 (Debian 15.8-1)` or `19beta1`.
pub(crate) fn major_of(version: &str) -> Option<u32> {
    version.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_14_to_18_are_tested_older_ones_rejected_and_newer_ones_accepted() {
        assert_eq!([9, 10, 13].map(support), [Support::TooOld; 3]);
        assert_eq!(support(14), Support::Ending);
        assert_eq!([15, 16, 17, 18].map(support), [Support::Tested; 4]);
        assert_eq!([19, 20, 42].map(support), [Support::Untested; 3]);
    }

    #[test]
    fn the_major_version_is_read_from_releases_betas_and_packages() {
        assert_eq!(major_of("15.8 (Debian 15.8-1.pgdg120+1)"), Some(15));
        assert_eq!(major_of("19beta1"), Some(19));
        assert_eq!(major_of("20devel"), Some(20));
        assert_eq!(major_of("9.6.1"), Some(9));
        assert_eq!(major_of("unknown"), None);
    }
}
