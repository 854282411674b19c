//! Authentication and authorisation at the API server: a certificate, tokens, kubeconfigs and ClusterRoles.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Subject};
use kube::{Api, Client};
use rcgen::{CertificateParams, KeyPair};
use serde_json::json;

use crate::apply;

/// The user of the tests, with every permission.
const ADMIN: &str = "admin";
/// The user of the Rollouts controller and the plugin: the service account in the bindings.
const CONTROLLER: &str = "system:serviceaccount:argo-rollouts:argo-rollouts";

/// The files with credentials, all in one directory.
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
    /// Generates credentials for an API server on 127.0.0.1.
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

        // A user's token is its name. That is enough for a temporary API server on loopback.
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

    /// Writes a kubeconfig with the token of a user.
    pub(crate) fn write_kubeconfig(&self, path: &Path, user: &str, token: &str) -> Result<()> {
        let config = kubeconfig(self.api_server_port, &self.certificate, user, token);
        Ok(fs::write(path, config)?)
    }
}

/// Returns a kubeconfig as JSON, which is valid YAML.
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

/// Grants `subject` the plugin's permissions of `deploy` except `patch`, by a role with the subject's name.
///
/// # Errors
/// Returns `Err` if the ClusterRole does not grant `patch`, or the API server rejects an object.
pub async fn bind_reader(owner: &Client, subject: Subject) -> Result<()> {
    let roles: Api<ClusterRole> = Api::all(owner.clone());
    let mut rules = roles.get("argo-rollouts-gloo-platform").await?.rules;
    let verbs = rules.iter_mut().flatten().map(|rule| &mut rule.verbs);
    let mut taken = 0;
    for verbs in verbs {
        let before = verbs.len();
        verbs.retain(|verb| verb != "patch");
        taken += before - verbs.len();
    }
    ensure!(taken > 0, "the ClusterRole grants no patch");
    let name = format!("{}-{}", subject.kind.to_lowercase(), subject.name);
    grant(owner, &name, &rules.unwrap_or_default(), subject).await
}

/// Grants `subject` these rules by a ClusterRole of this name, and replaces earlier rules of that role.
///
/// # Errors
/// Returns `Err` if the API server rejects the request.
pub async fn grant(
    owner: &Client,
    name: &str,
    rules: &[PolicyRule],
    subject: Subject,
) -> Result<()> {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": { "name": name },
        "rules": rules,
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
        "subjects": [subject],
    });
    let objects = [role, binding].map(serde_json::from_value);
    apply(owner, &objects.into_iter().collect::<Result<Vec<_>, _>>()?).await
}
