//! `doctor`: checks that a cluster has what the plugin needs.
//!
//! This file reads the cluster. Plain functions in the submodules judge what it has read.

mod argo_cd;
mod config_map;
mod permissions;
mod plugin_file;

pub use permissions::{Permissions, permissions};

use std::collections::BTreeSet;

use futures::future::try_join_all;
use gloo_router::{Policy, from_rpc};
use gloo_types::{MirrorPolicy, ObjectKey, Resource as _, RouteTable};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::{Client, Error};
use rollouts_rpc::{Rollout, error_chain};
use route_planner::PluginConfig;
use route_store::{ClientError, Clusters, KubeRouteStore};
use serde::Serialize;

use self::config_map::Entry;
use self::permissions::Cluster;
use super::controller::{self, ControllerRelease, Deployed};
use super::output::{self, BOLD, Format, GREEN, RED, YELLOW, styled};
use super::world::Subject;
use crate::flags::ClusterFlags;

/// Check that a cluster has what the plugin needs: one line per finding, with its remedy.
///
/// It checks the API server, the CRDs, the controller, its permissions and ConfigMap, the plugin's file, the Rollouts that
/// use the plugin, and Argo CD Applications that would revert its changes or keep edits from Git away.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
Examples:
  doctor                                            with your own kubeconfig
  doctor --service-account argo/rollouts            if the controller is not found and does not run as argo-rollouts
  doctor -o json                                    JSON output

Without permission to create SubjectAccessReviews, doctor checks your own permissions instead of those of the controller's \
service account. It downloads the plugin's file if its location is a URL, to compare it with the checksum. It can check a \
file in the controller's container only if it runs there.

Exit codes: 0 no problems; 1 problems; 2 the command line is wrong; 3 the cluster cannot be reached.")]
pub(crate) struct Args {
    /// The controller's namespace.
    #[arg(long, value_name = "NAMESPACE", default_value = controller::NAMESPACE)]
    controller_namespace: String,

    /// The controller's service account, as namespace/name. Default: that of the controller's Deployment.
    #[arg(long, value_name = "ACCOUNT", value_parser = super::restore::key)]
    service_account: Option<ObjectKey>,

    #[command(flatten)]
    cluster: ClusterFlags,

    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Format,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    subject: &'static str,
    verdict: Verdict,
    /// The result, and for anything but `ok` the remedy.
    message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    /// It may be intended, or could not be checked.
    Warning,
    Problem,
}

impl Finding {
    fn ok(subject: &'static str, message: impl Into<String>) -> Self {
        Self {
            subject,
            verdict: Verdict::Ok,
            message: message.into(),
        }
    }

    fn warning(subject: &'static str, message: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Warning,
            ..Self::ok(subject, message)
        }
    }

    fn problem(subject: &'static str, message: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Problem,
            ..Self::ok(subject, message)
        }
    }
}

pub(super) async fn run(args: &Args) -> anyhow::Result<bool> {
    let clusters = args.cluster.clusters();
    let findings = check_cluster(args, &clusters).await?;
    output::print(&args.output.render(&findings, |findings| text(findings))?)?;
    let is_ok = findings.iter().all(|it| it.verdict != Verdict::Problem);
    Ok(is_ok)
}

async fn check_cluster(args: &Args, clusters: &Clusters) -> anyhow::Result<Vec<Finding>> {
    let client = clusters.local.client().await?;
    let management = clusters.tables.client().await?;
    let mut findings = vec![
        Finding::ok("plugin", crate::VERSION),
        Finding::ok(
            "API server",
            version(&clusters.local, "the API server").await?,
        ),
    ];
    if !clusters.is_one() {
        let version = version(&clusters.tables, "the API server of the management cluster").await?;
        findings.push(Finding::ok("management", version));
    }
    let (controller, finding) = controller(args, client).await;
    findings.push(finding);
    let release = controller.as_ref();
    let release = release.and_then(|it| ControllerRelease::of_image(&it.image));
    let (account, only) = controller.map_or((None, None), |it| (Some(it.account), it.only));
    // The released manifests have this account.
    let account = args
        .service_account
        .clone()
        .or(account)
        .unwrap_or_else(|| ObjectKey::new(&args.controller_namespace, controller::ACCOUNT));
    let has_tables = has_resource(management, &mut findings, &TABLES).await;
    let has_rollouts = has_resource(client, &mut findings, &ROLLOUTS).await;

    let entries = entries(args, client, &mut findings).await;
    let mut policy = args.cluster.policy();
    for entry in &entries {
        policy
            .plugin_names
            .extend(entry.flags_policy().plugin_names);
    }
    output::progress("reading Rollouts");
    let read = match has_rollouts {
        true => subjects(&clusters.local, only.as_deref(), &mut findings).await,
        false => None,
    };
    let rollouts = read.as_deref().unwrap_or_default();
    let users = rollouts
        .iter()
        .filter_map(|it| Some((it, it.config(&policy).ok()?)));
    let users: Vec<(&Subject, PluginConfig)> = users.collect();
    // Without the Rollouts, nothing is known about the names that they use and the tables that they select.
    if read.is_some() {
        findings.extend(config_map::names(&entries, rollouts));
        findings.extend(advice(client, release, &users).await);
    }
    let mirrors = rollouts.iter().any(|it| from_rpc::has_mirrors(&it.rollout));
    if mirrors {
        has_resource(management, &mut findings, &MIRROR_POLICIES).await;
    }
    let of_tables = users
        .iter()
        .flat_map(|(_, config)| &config.route_tables().namespaces);
    let mut of_tables: BTreeSet<String> = of_tables.cloned().collect();
    of_tables.extend(only.clone().filter(|_| of_tables.is_empty()));
    let of_rollouts = rollouts.iter().map(|it| it.key.namespace.clone());
    let places = Places {
        of_rollouts: of_rollouts.chain(only.clone()).collect(),
        of_tables: of_tables.into_iter().collect(),
        only,
        controller: args.controller_namespace.clone(),
    };
    let account = account.to_string();
    findings.extend(check_permissions(&account, clusters, mirrors, &policy, &places).await?);
    if has_tables && read.is_some() {
        output::progress("reading RouteTables");
        findings.extend(tables(&clusters.tables, management, &users, &places).await);
    }
    Ok(findings)
}

/// The namespaces that the controller and its Rollouts use.
struct Places {
    controller: String,
    /// The only namespace whose Rollouts the controller reads; `None` for all.
    only: Option<String>,
    of_rollouts: BTreeSet<String>,
    of_tables: Vec<String>,
}

async fn version(store: &KubeRouteStore, what: &str) -> anyhow::Result<String> {
    let version = store.client().await?.apiserver_version().await;
    let version = version.map_err(|error| {
        let (server, error) = (store.server(), ClientError::from(error).to_string());
        // An error of the connection names the address itself.
        let at = if error.starts_with(server) { String::new() } else { format!(" at {server}") };
        anyhow::anyhow!(
            "cannot reach {what}{at}: {error}: start it, or choose another cluster with KUBECONFIG and --context"
        )
    })?;
    Ok(version.git_version)
}

/// A resource that the cluster must have.
struct Needed {
    subject: &'static str,
    group_version: &'static str,
    plural: &'static str,
    remedy: &'static str,
}

const TABLES: Needed = Needed {
    subject: "RouteTables",
    group_version: "networking.gloo.solo.io/v2",
    plural: RouteTable::PLURAL,
    remedy: "install Gloo Platform, or name the cluster that has it with --kubeconfig in the plugin's args",
};
const ROLLOUTS: Needed = Needed {
    subject: "Rollouts",
    group_version: "argoproj.io/v1alpha1",
    plural: "rollouts",
    remedy: "install Argo Rollouts",
};
const MIRROR_POLICIES: Needed = Needed {
    subject: "MirrorPolicies",
    group_version: "trafficcontrol.policy.gloo.solo.io/v2",
    plural: MirrorPolicy::PLURAL,
    remedy: "setMirrorRoute steps need them: install the CRDs of Gloo Platform",
};

async fn has_resource(client: &Client, findings: &mut Vec<Finding>, needed: &Needed) -> bool {
    let (subject, plural) = (needed.subject, needed.plural);
    let name = format!("{plural} of {}", needed.group_version);
    let finding = match client.list_api_group_resources(needed.group_version).await {
        Ok(list) if list.resources.iter().any(|it| it.name == plural) => Finding::ok(subject, name),
        Err(error) if !is_absent(&error) => unreadable(subject, &name, error),
        _ => Finding::problem(subject, format!("no {name}: {}", needed.remedy)),
    };
    let is_there = finding.verdict != Verdict::Problem;
    findings.push(finding);
    is_there
}

/// Returns the controller, if it was found, and the finding about it.
async fn controller(args: &Args, client: &Client) -> (Option<Deployed>, Finding) {
    const SUBJECT: &str = "controller";
    let namespace = &args.controller_namespace;
    match controller::deployed(client, namespace).await {
        Ok(Some(controller)) => {
            let only = controller.only.as_ref();
            let only = only.map(|namespace| format!(", only for namespace {namespace}"));
            let message = format!("{}{}", controller.image, only.unwrap_or_default());
            (Some(controller), Finding::ok(SUBJECT, message))
        }
        Ok(None) => {
            let message = format!(
                "not found in namespace {namespace}: if it runs in another one, set --controller-namespace"
            );
            (None, Finding::warning(SUBJECT, message))
        }
        Err(error) => (None, unreadable(SUBJECT, "Deployments", error)),
    }
}

/// Returns findings about Rollouts whose aborts or next updates go wrong with the controller's release.
async fn advice(
    client: &Client,
    release: Option<ControllerRelease>,
    users: &[(&Subject, PluginConfig)],
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (subject, _) in users {
        let status = &subject.rollout.status;
        let pong = controller::unprepared_pong(client, &subject.rollout, status).await;
        let advice = controller::abort_advice(release, &subject.api).into_iter();
        for advice in advice.chain(pong) {
            let message = format!("Rollout {}: {advice}", subject.key);
            findings.push(Finding::warning("Rollouts", message));
        }
    }
    findings
}

/// Returns the entries of the ConfigMap that register this plugin.
async fn entries(args: &Args, client: &Client, findings: &mut Vec<Finding>) -> Vec<Entry> {
    let namespace = &args.controller_namespace;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let data = match maps.get_opt("argo-rollouts-config").await {
        Ok(map) => map.and_then(|map| map.data),
        Err(error) => {
            findings.push(unreadable(config_map::SUBJECT, "ConfigMaps", error));
            return Vec::new();
        }
    };
    let text = data.and_then(|mut data| data.remove("trafficRouterPlugins"));
    let (entries, found) = config_map::read(namespace, text.as_deref(), &args.cluster.policy());
    findings.extend(found);
    for entry in &entries {
        findings.push(plugin_file::check(entry).await);
    }
    entries
}

/// Reads all Rollouts, or those of one namespace. Returns `None` if they cannot be read.
async fn subjects(
    store: &KubeRouteStore,
    only: Option<&str>,
    findings: &mut Vec<Finding>,
) -> Option<Vec<Subject>> {
    const SUBJECT: &str = "Rollouts";
    let rollouts = match store.objects::<Rollout>(only).await {
        Ok(rollouts) => rollouts,
        Err(error) => {
            findings.push(Finding::warning(SUBJECT, error_chain(&error)));
            return None;
        }
    };
    let mut subjects = Vec::new();
    for rollout in rollouts {
        match Subject::new(rollout.into_raw()) {
            Ok(subject) => subjects.push(subject),
            Err(error) => findings.push(Finding::problem(SUBJECT, error_chain(&error))),
        }
    }
    Some(subjects)
}

/// Checks the permissions of the plugin in each of its clusters.
async fn check_permissions(
    account: &str,
    clusters: &Clusters,
    mirrors: bool,
    policy: &Policy,
    places: &Places,
) -> anyhow::Result<Vec<Finding>> {
    let local = Cluster {
        client: clusters.local.client().await?,
        account: Some(account),
        role: match places.only {
            Some(_) => "Role argo-rollouts-gloo-platform",
            None => "ClusterRole argo-rollouts-gloo-platform",
        },
        place: "",
    };
    let in_namespaces: Vec<String> = places.of_rollouts.iter().cloned().collect();
    let of_tables = permissions::of_tables(mirrors, &places.of_tables);
    let mut of_rollouts = permissions::of_rollouts(&in_namespaces, &places.controller);
    if clusters.is_one() {
        of_rollouts.extend(of_tables);
        return Ok(permissions::examine(local, of_rollouts).await);
    }
    let cluster = policy.cluster.as_deref().unwrap_or_default();
    let role = format!("ClusterRole argo-rollouts-workload-{cluster} of the management cluster");
    let management = Cluster {
        client: clusters.tables.client().await?,
        // The kubeconfig contains the plugin's identity.
        account: None,
        role: &role,
        place: " in the management cluster",
    };
    let mut findings = permissions::examine(local, of_rollouts).await;
    findings.extend(permissions::examine(management, of_tables).await);
    Ok(findings)
}

/// Checks for Applications that would revert the tables which Rollouts select.
async fn tables(
    store: &KubeRouteStore,
    client: &Client,
    users: &[(&Subject, PluginConfig)],
    places: &Places,
) -> Vec<Finding> {
    let listed = match places.only {
        Some(_) => {
            let lists = places.of_tables.iter().map(|it| store.objects(Some(it)));
            try_join_all(lists).await.map(|lists| lists.concat())
        }
        None => store.objects(None).await,
    };
    let tables = match listed {
        Ok(tables) => tables,
        Err(error) => return vec![Finding::warning(argo_cd::SUBJECT, error_chain(&error))],
    };
    let configs = users.iter().map(|(_, config)| config);
    let selected = argo_cd::Selected::all(tables, &configs.collect::<Vec<_>>());
    let kind = GroupVersionKind::gvk("argoproj.io", "v1alpha1", "Application");
    let applications: Api<DynamicObject> =
        Api::all_with(client.clone(), &ApiResource::from_gvk(&kind));
    match applications.list(&ListParams::default()).await {
        Ok(list) => argo_cd::examine(&selected, &list.items),
        Err(error) if is_absent(&error) => {
            vec![Finding::ok(argo_cd::SUBJECT, "not in this cluster")]
        }
        Err(error) => vec![unreadable(argo_cd::SUBJECT, "Applications", error)],
    }
}

fn is_absent(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.code == 404)
}

fn unreadable(subject: &'static str, what: &str, error: Error) -> Finding {
    let error = ClientError::from(error);
    Finding::warning(
        subject,
        format!("{what} cannot be read: {}", error_chain(&error)),
    )
}

fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let (style, word) = match finding.verdict {
            Verdict::Ok => (GREEN, "ok"),
            Verdict::Warning => (YELLOW, "warning"),
            Verdict::Problem => (RED, "problem"),
        };
        let subject = styled(BOLD, &format!("{:14}", finding.subject));
        let message = &finding.message;
        text += &format!("{style}{word:7}{style:#}  {subject}  {message}\n");
    }
    text
}
