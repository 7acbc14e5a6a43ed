//! The little of X.509 that rustls does not say: which hash signed it, its common name, how long it is valid.
//!
//! Only certificates that somebody trusts already, or whose signature was checked, are asked for their name.

use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256, Sha384, Sha512};

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
const GENERALIZED_TIME: u8 = 0x18;
const OBJECT_IDENTIFIER: u8 = 0x06;

const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const SUBJECT_ALTERNATIVE_NAME: &[u8] = &[0x55, 0x1d, 0x11];
/// sha384WithRSAEncryption, ecdsa-with-SHA384
const SHA384: [&[u8]; 2] = [
    &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0c],
    &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x03],
];
/// sha512WithRSAEncryption, ecdsa-with-SHA512
const SHA512: [&[u8]; 2] = [
    &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0d],
    &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x04],
];
/// MD5, SHA-1 and SHA-256, which all are bound by SHA-256 (RFC 5929).
const SHA256: [&[u8]; 5] = [
    &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x04],
    &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x05],
    &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0b],
    &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x01],
    &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02],
];

/// What a password exchange is bound to (`tls-server-end-point`), if the certificate's algorithm defines it.
pub fn binding(certificate: &[u8]) -> Option<Vec<u8>> {
    let (_, whole, _) = element(certificate)?;
    let (_, _, after_body) = element(whole)?;
    let (_, algorithm, _) = element(after_body)?;
    let (_, algorithm, _) = element(algorithm).filter(|(tag, ..)| *tag == OBJECT_IDENTIFIER)?;
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
    let Some(body) = body(certificate) else { return false };
    if body.has_names {
        return false;
    }
    let Some(name) = common_name(body.subject) else {
        return false;
    };
    let (name, host) = (name.to_ascii_lowercase(), host.to_ascii_lowercase());
    match name.strip_prefix("*.") {
        Some(domain) => host.split_once('.').is_some_and(|(_, rest)| rest == domain),
        None => name == host,
    }
}

/// Whether `now` is within the certificate's time.
pub fn is_valid_at(certificate: &[u8], now: Duration) -> bool {
    let times = body(certificate).and_then(|body| {
        let (tag, from, rest) = element(body.validity)?;
        let from = time(tag, from)?;
        let (tag, until, _) = element(rest)?;
        Some((from, time(tag, until)?))
    });
    let now = SystemTime::UNIX_EPOCH + now;
    times.is_some_and(|(from, until)| (from..=until).contains(&now))
}

struct Body<'a> {
    validity: &'a [u8],
    subject: &'a [u8],
    /// Whether there is a list of names, which then alone counts.
    has_names: bool,
}

/// version, serial, algorithm, issuer, validity, subject, key, …, extensions
fn body(certificate: &[u8]) -> Option<Body<'_>> {
    let (_, whole, _) = element(certificate)?;
    let (_, mut rest, _) = element(whole)?;
    let mut next = || {
        let (tag, content, after) = element(rest)?;
        rest = after;
        Some((tag, content))
    };
    let (first, _) = next()?;
    if first == VERSION {
        next()?;
    }
    next()?;
    next()?;
    let (_, validity) = next()?;
    let (_, subject) = next()?;
    let mut has_names = false;
    while let Some((tag, content)) = next() {
        if tag == EXTENSIONS {
            let (_, mut extensions, _) = element(content)?;
            while let Some((_, extension, after)) = element(extensions) {
                has_names |= element(extension).is_some_and(|(_, kind, _)| kind == SUBJECT_ALTERNATIVE_NAME);
                extensions = after;
            }
        }
    }
    Some(Body {
        validity,
        subject,
        has_names,
    })
}

/// The last one counts: names are written from the general to the particular.
fn common_name(mut subject: &[u8]) -> Option<String> {
    let mut name = None;
    while let Some((_, mut set, after)) = element(subject) {
        while let Some((SEQUENCE, attribute, next)) = element(set) {
            let (_, kind, value) = element(attribute)?;
            if kind == COMMON_NAME {
                let (_, text, _) = element(value)?;
                name = String::from_utf8(text.to_vec())
                    .ok()
                    .filter(|text| !text.contains('\0'));
            }
            set = next;
        }
        subject = after;
    }
    name
}

/// `YYMMDDHHMMSSZ`, with four digits of the year as a generalized time.
fn time(tag: u8, text: &[u8]) -> Option<SystemTime> {
    let text = std::str::from_utf8(text).ok()?;
    let text = match tag {
        GENERALIZED_TIME => text.to_owned(),
        _ if text.get(..2)? < "50" => format!("20{text}"),
        _ => format!("19{text}"),
    };
    let part = |from: usize, to: usize| text.get(from..to);
    let rfc3339 = format!(
        "{}-{}-{}T{}:{}:{}Z",
        part(0, 4)?,
        part(4, 6)?,
        part(6, 8)?,
        part(8, 10)?,
        part(10, 12)?,
        part(12, 14)?
    );
    humantime::parse_rfc3339(&rfc3339).ok()
}

/// The first DER element: its tag, its content, and what comes after it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (digits.iter().fold(0, |sum, digit| sum << 8 | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
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
    fn a_password_is_bound_by_the_hash_of_the_signature() {
        let length = |algorithm| binding(&made("x", &[], algorithm)).map(|hash| hash.len());

        assert_eq!(length(&PKCS_ECDSA_P256_SHA256), Some(32));
        assert_eq!(length(&PKCS_ECDSA_P384_SHA384), Some(48));
        assert_eq!(length(&PKCS_ED25519), None);
    }
}
