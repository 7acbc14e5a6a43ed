//! Properties of a certificate that rustls does not expose: its signature hash, common name and validity, and whether
//! it can be a root.

use std::time::Duration;

use sha2::{Digest, Sha256, Sha384, Sha512};
use x509_cert::certificate::{CertificateInner, Raw, Version};
use x509_cert::der::asn1::{Any, ObjectIdentifier};
use x509_cert::der::{Decode, Tag, Tagged};
use x509_cert::ext::pkix::{BasicConstraints, KeyUsage};

/// sha384WithRSAEncryption, ecdsa-with-SHA384
const SHA384: [&str; 2] = ["1.2.840.113549.1.1.12", "1.2.840.10045.4.3.3"];
/// sha512WithRSAEncryption, ecdsa-with-SHA512
const SHA512: [&str; 2] = ["1.2.840.113549.1.1.13", "1.2.840.10045.4.3.4"];
/// MD5, SHA-1 and SHA-256, for which channel binding uses SHA-256 (RFC 5929).
const SHA256: [&str; 5] = [
    "1.2.840.113549.1.1.4",
    "1.2.840.113549.1.1.5",
    "1.2.840.113549.1.1.11",
    "1.2.840.10045.4.1",
    "1.2.840.10045.4.3.2",
];

const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");
const SUBJECT_ALTERNATIVE_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.17");

/// The channel binding data (`tls-server-end-point`), if the certificate's algorithm defines it.
pub fn binding(certificate: &[u8]) -> Option<Vec<u8>> {
    let algorithm = parsed(certificate)?.signature_algorithm().oid.to_string();
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

/// Whether the common name of an old certificate without subject alternative names matches a host.
pub fn common_name_fits(certificate: &[u8], host: &str) -> bool {
    let Some(certificate) = parsed(certificate) else {
        return false;
    };
    let certificate = certificate.tbs_certificate();
    // an invalid list counts as a list
    let mut extensions = certificate.extensions().into_iter().flatten();
    if extensions.any(|extension| extension.extn_id == SUBJECT_ALTERNATIVE_NAME) {
        return false;
    }
    // the last one counts, because names are ordered from general to specific
    let names = certificate.subject().iter().filter(|part| part.oid == COMMON_NAME);
    let Some(name) = names.last().and_then(|name| text(&name.value)) else {
        return false;
    };
    let (name, host) = (name.to_ascii_lowercase(), host.to_ascii_lowercase());
    match name.strip_prefix("*.") {
        _ if name.contains('\0') => false,
        Some(domain) => host.split_once('.').is_some_and(|(_, rest)| rest == domain),
        None => name == host,
    }
}

/// Whether the certificate is valid at `now`.
pub fn is_valid_at(certificate: &[u8], now: Duration) -> bool {
    parsed(certificate).is_some_and(|certificate| {
        let validity = certificate.tbs_certificate().validity();
        (validity.not_before.to_unix_duration()..=validity.not_after.to_unix_duration()).contains(&now)
    })
}

/// Whether it is self-issued. OpenSSL, and therefore libpq, does not trust chains that end with another kind.
pub fn is_self_issued(certificate: &[u8]) -> bool {
    parsed(certificate).is_some_and(|certificate| {
        let certificate = certificate.tbs_certificate();
        certificate.subject() == certificate.issuer()
    })
}

/// Whether it may sign other certificates, by the rules of OpenSSL.
pub fn is_authority(certificate: &[u8]) -> bool {
    let Some(certificate) = parsed(certificate) else {
        return false;
    };
    let certificate = certificate.tbs_certificate();
    let (Ok(constraints), Ok(usage)) = (
        certificate.get_extension::<BasicConstraints>(),
        certificate.get_extension::<KeyUsage>(),
    ) else {
        return false;
    };
    let may_sign = usage.map(|(_, usage)| usage.key_cert_sign());
    match constraints {
        _ if may_sign == Some(false) => false,
        Some((_, constraints)) => constraints.ca,
        None => certificate.version() == Version::V1 || may_sign == Some(true),
    }
}

/// None if it is not a certificate, or if there is something behind it. `Raw`: OpenSSL takes long serial numbers too.
fn parsed(certificate: &[u8]) -> Option<CertificateInner<Raw>> {
    CertificateInner::from_der(certificate).ok()
}

/// A name in one of the encodings that are ASCII or UTF-8.
fn text(value: &Any) -> Option<&str> {
    let is_text = matches!(value.tag(), Tag::Utf8String | Tag::PrintableString | Tag::Ia5String);
    std::str::from_utf8(value.value()).ok().filter(|_| is_text)
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

    /// What another parser reads, and what follows from that by the same rules.
    struct Other {
        common_name: Option<String>,
        has_names: bool,
        validity: std::ops::RangeInclusive<i64>,
        is_self_issued: bool,
        is_authority: bool,
    }

    fn read_by_another(certificate: &[u8]) -> Option<Other> {
        use x509_parser::prelude::{FromDer, ParsedExtension, X509Certificate, X509Version};

        let (rest, certificate) = X509Certificate::from_der(certificate).ok()?;
        let names = certificate.subject().iter_common_name();
        let may_sign = certificate.key_usage().ok()?.map(|usage| usage.value.key_cert_sign());
        let constraints = certificate.basic_constraints().ok()?.map(|found| found.value.ca);
        let is_list = |extension: &ParsedExtension| matches!(extension, ParsedExtension::SubjectAlternativeName(_));
        let validity = certificate.validity();
        rest.is_empty().then(|| Other {
            common_name: names.last().and_then(|name| name.as_str().ok()).map(str::to_owned),
            has_names: certificate
                .extensions()
                .iter()
                .any(|found| is_list(found.parsed_extension())),
            validity: validity.not_before.timestamp()..=validity.not_after.timestamp(),
            is_self_issued: certificate.subject().as_raw() == certificate.issuer().as_raw(),
            is_authority: match constraints {
                _ if may_sign == Some(false) => false,
                Some(ca) => ca,
                None => certificate.version() == X509Version::V1 || may_sign == Some(true),
            },
        })
    }

    #[test]
    fn what_is_read_of_a_changed_certificate_is_what_another_parser_reads() {
        let root = |usages: &[rcgen::KeyUsagePurpose]| {
            let mut params = CertificateParams::new([]).unwrap();
            params.distinguished_name.push(DnType::CommonName, "db.example.org");
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            params.key_usages = usages.to_vec();
            let key = KeyPair::generate().unwrap();
            params.self_signed(&key).unwrap().der().to_vec()
        };
        let seconds = 1_800_000_000;
        let (mut differences, mut compared) = (Vec::new(), 0);
        for original in [
            made("db.example.org", &[], &PKCS_ECDSA_P256_SHA256),
            made("db.example.org", &["db.example.org"], &PKCS_ECDSA_P256_SHA256),
            root(&[]),
            root(&[rcgen::KeyUsagePurpose::KeyCertSign]),
            root(&[rcgen::KeyUsagePurpose::DigitalSignature]),
        ] {
            for (at, bit) in (0..original.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
                let mut mutant = original.clone();
                mutant[at] ^= 1 << bit;
                // it also refuses some that are wrong in what nobody reads here
                let Some(other) = read_by_another(&mutant) else {
                    continue;
                };
                compared += 1;
                let name = other.common_name.clone().unwrap_or_default();
                let claims = [
                    ("is named", common_name_fits(&mutant, &name), !other.has_names),
                    ("is named as before", common_name_fits(&mutant, "db.example.org"), {
                        !other.has_names && name.eq_ignore_ascii_case("db.example.org")
                    }),
                    ("is valid", is_valid_at(&mutant, Duration::from_secs(seconds)), {
                        other.validity.contains(&(seconds as i64))
                    }),
                    ("is an authority", is_authority(&mutant), other.is_authority),
                    ("is self-issued", is_self_issued(&mutant), other.is_self_issued),
                ];
                let wrong = claims.into_iter().filter(|(_, ours, theirs)| *ours && !theirs);
                differences.extend(wrong.map(|(claim, ..)| format!("byte {at}, bit {bit}: {claim}")));
            }
        }

        assert!(compared > 1_000, "{compared}");
        assert!(differences.is_empty(), "{} {differences:#?}", differences.len());
    }

    #[test]
    fn a_password_is_bound_by_the_hash_of_the_signature() {
        let length = |algorithm| binding(&made("x", &[], algorithm)).map(|hash| hash.len());

        assert_eq!(length(&PKCS_ECDSA_P256_SHA256), Some(32));
        assert_eq!(length(&PKCS_ECDSA_P384_SHA384), Some(48));
        assert_eq!(length(&PKCS_ED25519), None);
    }
}
