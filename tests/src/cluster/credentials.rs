//! What the API server and its clients know each other by: a certificate, a signing key, tokens, a kubeconfig.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rcgen::{CertificateParams, KeyPair};
use serde_json::json;

/// The user of the tests, and of the kubeconfig.
const ADMIN: &str = "admin";
/// The Rollouts controller, and the plugin that inherits its environment: the service account that the bindings name.
const CONTROLLER: &str = "system:serviceaccount:argo-rollouts:argo-rollouts";

/// The files, all below one directory.
#[derive(Debug)]
pub(crate) struct Credentials {
    pub(crate) api_server_port: u16,
    pub(crate) certificate: PathBuf,
    pub(crate) certificate_key: PathBuf,
    pub(crate) token_signing_key: PathBuf,
    pub(crate) token_verifying_key: PathBuf,
    pub(crate) tokens: PathBuf,
    pub(crate) admin_kubeconfig: PathBuf,
    pub(crate) controller_kubeconfig: PathBuf,
}

impl Credentials {
    /// Makes new credentials for an API server on 127.0.0.1.
    pub(crate) fn generate(directory: &Path, api_server_port: u16) -> Result<Self> {
        let files = Self {
            api_server_port,
            certificate: directory.join("apiserver.crt"),
            certificate_key: directory.join("apiserver.key"),
            token_signing_key: directory.join("service-account.key"),
            token_verifying_key: directory.join("service-account.pub"),
            tokens: directory.join("tokens.csv"),
            admin_kubeconfig: directory.join("kubeconfig"),
            controller_kubeconfig: directory.join("controller.kubeconfig"),
        };
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new(["127.0.0.1".to_owned()])?
            .self_signed(&key)?
            .pem();
        fs::write(&files.certificate, &certificate)?;
        fs::write(&files.certificate_key, key.serialize_pem())?;

        let signing = KeyPair::generate()?;
        fs::write(&files.token_signing_key, signing.serialize_pem())?;
        fs::write(&files.token_verifying_key, signing.public_key_pem())?;

        // A user's token is its name: they guard a throwaway API server on loopback.
        let tokens = format!("{ADMIN},{ADMIN},1,system:masters\n{CONTROLLER},{CONTROLLER},2\n");
        fs::write(&files.tokens, tokens)?;
        for (path, user) in [
            (&files.admin_kubeconfig, ADMIN),
            (&files.controller_kubeconfig, CONTROLLER),
        ] {
            files.write_kubeconfig(path, user, user)?;
        }
        Ok(files)
    }

    /// Writes a kubeconfig for the user of the token.
    pub(crate) fn write_kubeconfig(&self, path: &Path, user: &str, token: &str) -> Result<()> {
        let config = kubeconfig(self.api_server_port, &self.certificate, user, token);
        Ok(fs::write(path, config)?)
    }
}

/// JSON is YAML.
fn kubeconfig(port: u16, certificate: &Path, user: &str, token: &str) -> String {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "e2e", "cluster": {
            "server": format!("https://127.0.0.1:{port}"),
            "certificate-authority": certificate,
        } }],
        "users": [{ "name": user, "user": { "token": token } }],
        "contexts": [{ "name": "e2e", "context": { "cluster": "e2e", "user": user } }],
        "current-context": "e2e",
    });
    format!("{config:#}\n")
}
