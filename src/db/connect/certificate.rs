//! What of a certificate rustls does not say: which hash signed it, its common name, its time, whether it can be a
//! root.

use std::time::Duration;

use sha2::{Digest, Sha256, Sha384, Sha512};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::{ASN1Time, FromDer, X509Version};

/// sha384WithRSAEncryption, ecdsa-with-SHA384
const SHA384: [&str; 2] = ["1.2.840.113549.1.1.12", "1.2.840.10045.4.3.3"];
/// sha512WithRSAEncryption, ecdsa-with-SHA512
const SHA512: [&str; 2] = ["1.2.840.113549.1.1.13", "1.2.840.10045.4.3.4"];
/// MD5, SHA-1 and SHA-256, which all are bound by SHA-256 (RFC 5929).
const SHA256: [&str; 5] = [
    "1.2.840.113549.1.1.4",
    "1.2.840.113549.1.1.5",
    "1.2.840.113549.1.1.11",
    "1.2.840.10045.4.1",
    "1.2.840.10045.4.3.2",
];

/// What a password exchange is bound to (`tls-server-end-point`), if the certificate's algorithm defines it.
pub fn binding(certificate: &[u8]) -> Option<Vec<u8>> {
    let algorithm = parsed(certificate)?.signature_algorithm.algorithm.to_id_string();
    let algorithm = algorithm.as_str();
    if SHA256.contains(&algorithm) {
        Some(Sha256::digest(certificate).to_vec())
    } else if SHA384.contains(&algorithm) {
        Some(Sha384::digest(certificate).to_vec())
    } else if SHA512.contains(&algorithm) {
        Some(Sha512::digest(certificate).to_vec())
    } else {
        None
    }
}

/// Whether a host is named by the common name of a certificate that has no list of names, as older ones have it.
pub fn common_name_fits(certificate: &[u8], host: &str) -> bool {
    let Some(certificate) = parsed(certificate) else {
        return false;
    };
    // a list that cannot be read is one all the same
    if !matches!(certificate.subject_alternative_name(), Ok(None)) {
        return false;
    }
    // the last one counts: names are written from the general to the particular
    let Some(name) = certificate
        .subject()
        .iter_common_name()
        .last()
        .and_then(|name| name.as_str().ok())
    else {
        return false;
    };
    let (name, host) = (name.to_ascii_lowercase(), host.to_ascii_lowercase());
    match name.strip_prefix("*.") {
        _ if name.contains('\0') => false,
        Some(domain) => host.split_once('.').is_some_and(|(_, rest)| rest == domain),
        None => name == host,
    }
}

/// Whether `now` is within the certificate's time.
pub fn is_valid_at(certificate: &[u8], now: Duration) -> bool {
    let now = i64::try_from(now.as_secs())
        .ok()
        .and_then(|now| ASN1Time::from_timestamp(now).ok());
    let certificate = parsed(certificate);
    now.zip(certificate)
        .is_some_and(|(now, certificate)| certificate.validity().is_valid_at(now))
}

/// Whether nobody else vouches for it. OpenSSL, and so libpq, believes no chain that ends with another kind.
pub fn is_self_issued(certificate: &[u8]) -> bool {
    parsed(certificate).is_some_and(|certificate| certificate.subject().as_raw() == certificate.issuer().as_raw())
}

/// Whether it may vouch for others, by the rules of OpenSSL.
pub fn is_authority(certificate: &[u8]) -> bool {
    let Some(certificate) = parsed(certificate) else {
        return false;
    };
    let (Ok(constraints), Ok(usage)) = (certificate.basic_constraints(), certificate.key_usage()) else {
        return false;
    };
    let may_sign = usage.map(|usage| usage.value.key_cert_sign());
    match constraints {
        _ if may_sign == Some(false) => false,
        Some(constraints) => constraints.value.ca,
        None => certificate.version() == X509Version::V1 || may_sign == Some(true),
    }
}

/// None if it is not a certificate, or if there is something behind it.
fn parsed(certificate: &[u8]) -> Option<X509Certificate<'_>> {
    let (rest, parsed) = X509Certificate::from_der(certificate).ok()?;
    rest.is_empty().then_some(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519};

    fn made(common_name: &str, names: &[&str], algorithm: &'static rcgen::SignatureAlgorithm) -> Vec<u8> {
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2060, 1, 1);
        let key = KeyPair::generate_for(algorithm).unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn the_common_name_counts_only_without_a_list_of_names() {
        let old = made("DB.example.org", &[], &PKCS_ECDSA_P256_SHA256);
        let any = made("*.example.org", &[], &PKCS_ECDSA_P256_SHA256);
        let new = made("db.example.org", &["other.example.org"], &PKCS_ECDSA_P256_SHA256);

        assert!(common_name_fits(&old, "db.example.org"));
        assert!(!common_name_fits(&old, "db2.example.org"));
        assert!(common_name_fits(&any, "db.example.org") && !common_name_fits(&any, "a.b.example.org"));
        assert!(!common_name_fits(&new, "db.example.org"));
        assert!(!common_name_fits(&old[..old.len() / 2], "db.example.org"));
    }

    #[test]
    fn the_time_of_a_certificate_is_read_in_both_ways_of_writing_it() {
        let certificate = made("x", &[], &PKCS_ECDSA_P256_SHA256);
        let year = |years: u64| Duration::from_secs((years - 1970) * 31_557_600);

        assert!(is_valid_at(&certificate, year(2026)));
        assert!(!is_valid_at(&certificate, year(2019)));
        assert!(!is_valid_at(&certificate, year(2061)));
    }

    #[test]
    fn only_one_that_says_so_may_vouch_for_others() {
        let leaf = made("x", &[], &PKCS_ECDSA_P256_SHA256);
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let root = params
            .self_signed(&KeyPair::generate().unwrap())
            .unwrap()
            .der()
            .to_vec();

        assert!(is_self_issued(&leaf) && !is_authority(&leaf));
        assert!(is_self_issued(&root) && is_authority(&root));
    }

    #[test]
    fn what_is_cut_short_changed_or_followed_by_something_never_panics_and_names_nobody_else() {
        let certificate = made("db.example.org", &[], &PKCS_ECDSA_P256_SHA256);
        let mut mutants: Vec<Vec<u8>> = (0..certificate.len()).map(|end| certificate[..end].to_vec()).collect();
        mutants.push([certificate.as_slice(), &[0]].concat());
        for mutant in &mutants {
            assert!(!common_name_fits(mutant, "db.example.org") && !is_self_issued(mutant) && !is_authority(mutant));
            assert!(binding(mutant).is_none() && !is_valid_at(mutant, Duration::from_secs(1_800_000_000)));
        }
        for at in 0..certificate.len() {
            for flip in [0x01, 0x20, 0x80, 0xff] {
                let mut mutant = certificate.clone();
                mutant[at] ^= flip;
                assert!(!common_name_fits(&mutant, "evil.example.org"));
                assert!(!is_authority(&mutant), "byte {at}");
                let _ = (
                    binding(&mutant),
                    is_self_issued(&mutant),
                    is_valid_at(&mutant, Duration::ZERO),
                );
            }
        }
    }

    #[test]
    fn a_password_is_bound_by_the_hash_of_the_signature() {
        let length = |algorithm| binding(&made("x", &[], algorithm)).map(|hash| hash.len());

        assert_eq!(length(&PKCS_ECDSA_P256_SHA256), Some(32));
        assert_eq!(length(&PKCS_ECDSA_P384_SHA384), Some(48));
        assert_eq!(length(&PKCS_ED25519), None);
    }
}
