//! Whose certificates of registries count.

use std::env;

use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;

/// What `SSL_CERT_FILE` and `SSL_CERT_DIR` name, or what the system trusts. In an image that has neither, what Mozilla's
/// programs trust.
pub(super) fn trusted() -> RootCertStore {
    let is_chosen = ["SSL_CERT_FILE", "SSL_CERT_DIR"]
        .iter()
        .any(|variable| env::var_os(variable).is_some());
    let (roots, origin) = choose(rustls_native_certs::load_native_certs().certs, is_chosen);
    if roots.is_empty() {
        tracing::warn!(
            "no certificate authority is where SSL_CERT_FILE and SSL_CERT_DIR say, so no https registry can be asked"
        );
    } else {
        tracing::info!(origin, count = roots.len(), "certificate authorities");
    }
    roots
}

/// The authorities that were `found`, or those in the program, and in a word where they are from.
fn choose(found: Vec<CertificateDer<'_>>, is_chosen: bool) -> (RootCertStore, &'static str) {
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found);
    if added == 0 && !is_chosen {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        return (roots, "program");
    }
    (roots, if is_chosen { "environment" } else { "system" })
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    #[track_caller]
    fn check(found: &[CertificateDer<'_>], is_chosen: bool, expect: (usize, &str)) {
        let (roots, origin) = choose(found.to_vec(), is_chosen);
        assert_eq!((roots.len(), origin), expect);
    }

    #[test]
    fn an_administrators_choice_counts_most_and_an_empty_image_can_ask_all_the_same() {
        let key = KeyPair::generate().unwrap();
        let own = CertificateParams::default().self_signed(&key).unwrap();
        let own = own.der().clone();
        let mozilla = webpki_roots::TLS_SERVER_ROOTS.len();
        assert!(mozilla > 100);
        check(std::slice::from_ref(&own), false, (1, "system"));
        check(&[], false, (mozilla, "program"));
        check(&[own], true, (1, "environment"));
        // A misspelt path must not widen what is trusted.
        check(&[], true, (0, "environment"));
        check(&[CertificateDer::from(vec![0])], true, (0, "environment"));
    }
}
