//! AutoMTLS: each side creates a certificate for this process and sends it to the other side, the host in `PLUGIN_CLIENT_CERT` and
//! the plugin in its handshake line (`server.go` and `mtls.go` in go-plugin).

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use p521::ecdsa::{Signature, VerifyingKey, signature::Verifier as _};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{self, CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{
    AlgorithmIdentifier, CertificateDer, InvalidSignature, PrivateKeyDer,
    SignatureVerificationAlgorithm, UnixTime, alg_id,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme,
};

use super::Acceptor;

/// The host name in both certificates.
const NAME: &str = "localhost";

/// Why AutoMTLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The host's certificate is not valid.
    #[error("PLUGIN_CLIENT_CERT holds no certificate in PEM; the host has to send its own")]
    HostCertificate(#[source] rustls::pki_types::pem::Error),
    /// The plugin's certificate could not be created.
    #[error("cannot make a certificate for the plugin")]
    OwnCertificate(#[source] rcgen::Error),
    /// TLS could not be set up with the certificate.
    #[error("cannot set up TLS")]
    Config(#[source] rustls::Error),
}

impl Acceptor {
    /// Returns an acceptor that accepts only the host with the certificate `host`, in PEM. The text is the plugin's certificate for the
    /// handshake line: DER in base64 without padding.
    ///
    /// # Errors
    ///
    /// See [`TlsError`].
    pub(crate) fn for_host(host: &str) -> Result<(Self, String), TlsError> {
        let host = CertificateDer::from_pem_slice(host.as_bytes())
            .map_err(TlsError::HostCertificate)?
            .into_owned();
        let (certificate, key) = certificate().map_err(TlsError::OwnCertificate)?;
        let announced = STANDARD_NO_PAD.encode(&certificate);
        let provider = Arc::new(crypto::ring::default_provider());
        let verifier = OnlyHost {
            host,
            others: provider.signature_verification_algorithms,
        };
        let config = config(provider, verifier, certificate, key).map_err(TlsError::Config)?;
        let acceptor = Self {
            tls: Some(Arc::new(config).into()),
        };
        Ok((acceptor, announced))
    }
}

fn certificate() -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), rcgen::Error> {
    let mut params = CertificateParams::new([NAME.to_owned()])?;
    params.distinguished_name.push(DnType::CommonName, NAME);
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok((certificate.into(), key.into()))
}

fn config(
    provider: Arc<CryptoProvider>,
    verifier: OnlyHost,
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_single_cert(vec![certificate], key)?;
    // A gRPC host requires this protocol; a net/rpc host offers none.
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

/// Accepts one certificate, compared byte by byte, from a peer that proves that it has the key.
#[derive(Debug)]
struct OnlyHost {
    host: CertificateDer<'static>,
    /// All algorithms except P-521.
    others: WebPkiSupportedAlgorithms,
}

impl OnlyHost {
    fn algorithms(&self, scheme: SignatureScheme) -> &WebPkiSupportedAlgorithms {
        match scheme {
            SignatureScheme::ECDSA_NISTP521_SHA512 => &P521,
            _ => &self.others,
        }
    }
}

impl ClientCertVerifier for OnlyHost {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        if *end_entity == self.host {
            Ok(ClientCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        crypto::verify_tls12_signature(message, cert, dss, self.algorithms(dss.scheme))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        crypto::verify_tls13_signature(message, cert, dss, self.algorithms(dss.scheme))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let mut schemes = P521.supported_schemes();
        schemes.extend(self.others.supported_schemes());
        schemes
    }
}

/// ECDSA over P-521, in the form in which rustls looks up algorithms. go-plugin hosts sign with it (`mtls.go`), and ring does not
/// implement it.
const P521: WebPkiSupportedAlgorithms = WebPkiSupportedAlgorithms {
    all: &[&EcdsaP521Sha512],
    mapping: &[(SignatureScheme::ECDSA_NISTP521_SHA512, &[&EcdsaP521Sha512])],
};

#[derive(Debug)]
struct EcdsaP521Sha512;

impl SignatureVerificationAlgorithm for EcdsaP521Sha512 {
    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::ECDSA_P521
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::ECDSA_SHA512
    }

    fn verify_signature(
        &self,
        public_key: &[u8],
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), InvalidSignature> {
        let key = VerifyingKey::from_sec1_bytes(public_key).map_err(|_| InvalidSignature)?;
        let signature = Signature::from_der(signature).map_err(|_| InvalidSignature)?;
        key.verify(message, &signature)
            .map_err(|_| InvalidSignature)
    }
}
