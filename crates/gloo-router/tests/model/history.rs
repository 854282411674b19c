//! The setups of the model, its actions and their frequencies, and histories as text.

use std::fmt;

use proptest::prelude::*;
use proptest::sample::select;
use proptest_state_machine::ReferenceStateMachine;
use serde::{Deserialize, Serialize};

/// A setup and the actions after it. As text it is YAML with one action per line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct History {
    pub(crate) setup: Setup,
    pub(crate) actions: Vec<Action>,
}

/// The properties that are constant in a history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Setup {
    /// Number of RouteTables: `shop/a`, `shop/b` and so on.
    pub(crate) tables: usize,
    pub(crate) services: Services,
    pub(crate) steps: Steps,
    /// `maxTrafficWeight`; the weights of the steps are percentages of it.
    pub(crate) max: i32,
    /// Whether tables are selected by label instead of by name.
    pub(crate) by_label: bool,
    pub(crate) dynamic_stable_scale: bool,
    /// Whether the owner of `shop/a` has a route to the canary's Service.
    #[serde(default)]
    pub(crate) has_preview: bool,
    /// Number of passes after which endpoints follow the selectors of Services; without it there are no endpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lag: Option<usize>,
    /// The second Rollout.
    pub(crate) second: Second,
}

/// How Pods of the two versions are distinguished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Services {
    /// By two Services.
    Pair,
    /// By two Services that swap roles with every promotion.
    PingPong,
    /// By subsets of one Service.
    Subsets,
}

/// The steps of the first Rollout. The second one has `Plain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Steps {
    /// 25 %, pause, 50 %, pause.
    Plain,
    /// 20 %, header route, 40 %, pause, header route removed, 60 %, pause.
    Header,
    /// Header route, 10 %, experiment, pause, 50 %.
    Experiment,
    /// 30 %, mirror route, pause, 70 %, pause.
    Mirror,
}

/// The Rollout beside `reviews`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Second {
    Absent,
    /// It has its own routes in the same tables.
    Neighbour,
    /// It has the same stable Service.
    Rival,
}

/// Index of a Rollout: 0 is `reviews`, 1 the [second](Second) one.
pub(crate) type Who = usize;

/// Something that happens between two requests to the API server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) enum Action {
    /// The controller makes one pass.
    Reconcile(Who),
    /// A new pod template.
    Update(Who),
    /// The pod template of the stable version.
    Rollback(Who),
    Abort(Who),
    Retry(Who),
    /// `promote`: ends a pause.
    Promote(Who),
    PromoteFull(Who),
    /// The canary loses its pods for two passes.
    CanaryDown(Who),
    /// A stable pod is missing for two passes.
    StableDown(Who),
    /// The owner of a table edits it.
    Edit {
        table: usize,
        edit: Edit,
        when: When,
    },
    /// A request fails.
    Fault {
        on: Target,
        fault: Fault,
        /// How many times it fails.
        times: u8,
    },
    /// Every request succeeds again.
    Heal,
    /// The process of the plugin ends, and a new one starts.
    Restart {
        when: When,
    },
    /// Another process of the plugin carries out an earlier SetWeight, as after a change of the leader. `ago` counts back
    /// from the last one.
    Late {
        who: Who,
        ago: usize,
        when: When,
    },
}

/// Number of requests to the API server before it happens; 0 is now.
pub(crate) type When = u8;

/// Where a request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Target {
    /// Writing a RouteTable.
    Table(usize),
    /// Reading one RouteTable.
    Read(usize),
    /// Reading any RouteTable.
    Reads,
    /// Anything with MirrorPolicies.
    Policies,
}

/// How a request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Fault {
    Unreachable,
    Conflict,
    Forbidden,
    /// It takes three seconds, and fails.
    Slow,
    /// It is carried out, but reported as failed.
    AnswerLost,
}

/// An edit of an owner. Indices count the owner's own routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Edit {
    Rename(usize),
    Move(usize, usize),
    /// Renamed, moved and with other matchers at once.
    Rework(usize, usize),
    Copy(usize),
    Remove(usize),
    /// Removed, and kept for a later `Paste`.
    Cut(usize),
    Paste,
    Matchers(usize),
    /// A port, kind, cluster or filter of the stable destination.
    Stable(usize, Attribute),
    /// Sets the weight of the destination `legacy`.
    Legacy(usize, u8),
    NoLegacy(usize),
    /// The stable destination becomes `elsewhere`; the others stay.
    Repoint(usize),
    /// `elsewhere` becomes the stable destination again.
    PointBack(usize),
    /// The route forwards only to `elsewhere`.
    Replace(usize),
    /// The weights of stable and canary are changed.
    Drift(usize),
    /// An unreadable destination is added.
    Break(usize),
    Mend,
    /// The destinations that the plugin added are removed.
    NoCanary(usize),
    /// A route that the plugin added is removed.
    NoManaged,
    /// A route that the plugin added loses the plugin's labels.
    NoLabels,
    NoAnnotation,
    /// The annotation becomes unreadable.
    SpoilAnnotation,
    /// `NoCanary` for all routes, `NoManaged` and `NoAnnotation`.
    NothingOfOurs,
    /// Changes a label, an annotation and a field of the spec that the plugin does not read.
    Metadata,
    /// The owner's document is applied over the live table.
    Reapply,
    /// Deleted, and created from the owner's document.
    Recreate,
    Delete,
    Deselect,
    Select,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Attribute {
    Port,
    Kind,
    Cluster,
    Filter,
}

impl ReferenceStateMachine for History {
    // Whether an action is possible depends on what the plugin did, so an impossible action does nothing.
    type State = Setup;
    type Transition = Action;

    fn init_state() -> BoxedStrategy<Setup> {
        let services = select(vec![
            Services::Pair,
            Services::Pair,
            Services::PingPong,
            Services::Subsets,
        ]);
        let steps = select(vec![
            Steps::Plain,
            Steps::Header,
            Steps::Experiment,
            Steps::Mirror,
        ]);
        let second = select(vec![Second::Absent, Second::Neighbour, Second::Rival]);
        let max = select(vec![100, 1000]);

        (
            1..=3_usize,
            services,
            steps,
            max,
            any::<bool>(),
            (any::<bool>(), any::<bool>()),
            select(vec![None, Some(0), Some(1), Some(2)]),
            second,
        )
            .prop_map(
                |(
                    tables,
                    services,
                    steps,
                    max,
                    by_label,
                    (dynamic_stable_scale, has_preview),
                    lag,
                    second,
                )| Setup {
                    tables,
                    services,
                    steps,
                    max,
                    by_label,
                    dynamic_stable_scale,
                    has_preview,
                    lag,
                    second,
                },
            )
            .boxed()
    }

    fn transitions(setup: &Setup) -> BoxedStrategy<Action> {
        let who = match setup.second {
            Second::Absent => Just(0).boxed(),
            Second::Neighbour | Second::Rival => prop_oneof![3 => Just(0), 1 => Just(1)].boxed(),
        };
        let tables = setup.tables;
        let when = || prop_oneof![3 => Just(0_u8), 2 => 1..6_u8];
        let simple = prop_oneof![
            12 => Just(Action::Reconcile as fn(Who) -> Action),
            3 => Just(Action::Update as fn(Who) -> Action),
            1 => Just(Action::Rollback as fn(Who) -> Action),
            2 => Just(Action::Abort as fn(Who) -> Action),
            1 => Just(Action::Retry as fn(Who) -> Action),
            4 => Just(Action::Promote as fn(Who) -> Action),
            1 => Just(Action::PromoteFull as fn(Who) -> Action),
            1 => Just(Action::CanaryDown as fn(Who) -> Action),
            1 => Just(Action::StableDown as fn(Who) -> Action),
        ];
        let controller = (simple, who.clone()).prop_map(|(action, who)| action(who));
        let owner = (0..tables, edit(setup), when()).prop_map(|(table, edit, when)| Action::Edit {
            table,
            edit,
            when,
        });
        let target = prop_oneof![
            4 => (0..tables).prop_map(Target::Table),
            1 => (0..tables).prop_map(Target::Read),
            1 => Just(Target::Reads),
            1 => Just(Target::Policies),
        ];
        let fault = select(vec![
            Fault::Unreachable,
            Fault::Conflict,
            Fault::Forbidden,
            Fault::Slow,
            Fault::AnswerLost,
        ]);
        let fault = (target, fault, 1..5_u8).prop_map(|(on, fault, times)| Action::Fault {
            on,
            fault,
            times,
        });
        let late =
            (who, 1..4_usize, when()).prop_map(|(who, ago, when)| Action::Late { who, ago, when });
        prop_oneof![
            24 => controller,
            9 => owner,
            2 => fault,
            2 => Just(Action::Heal),
            1 => when().prop_map(|when| Action::Restart { when }),
            1 => late,
        ]
        .boxed()
    }

    fn apply(setup: Setup, _: &Action) -> Setup {
        setup
    }
}

fn edit(setup: &Setup) -> BoxedStrategy<Edit> {
    // Positions beyond the last route wrap.
    let route = || 0..5_usize;
    let mut kinds: Vec<BoxedStrategy<Edit>> = vec![
        route().prop_map(Edit::Rename).boxed(),
        (route(), route())
            .prop_map(|(from, to)| Edit::Move(from, to))
            .boxed(),
        (route(), route())
            .prop_map(|(from, to)| Edit::Rework(from, to))
            .boxed(),
        route().prop_map(Edit::Copy).boxed(),
        route().prop_map(Edit::Remove).boxed(),
        route().prop_map(Edit::Cut).boxed(),
        Just(Edit::Paste).boxed(),
        Just(Edit::Paste).boxed(),
        route().prop_map(Edit::Matchers).boxed(),
        (
            route(),
            select(vec![
                Attribute::Port,
                Attribute::Kind,
                Attribute::Cluster,
                Attribute::Filter,
            ]),
        )
            .prop_map(|(route, attribute)| Edit::Stable(route, attribute))
            .boxed(),
        (route(), select(vec![10, 20, 30]))
            .prop_map(|(route, weight)| Edit::Legacy(route, weight))
            .boxed(),
        route().prop_map(|route| Edit::Legacy(route, 0)).boxed(),
        route().prop_map(Edit::NoLegacy).boxed(),
        route().prop_map(Edit::Repoint).boxed(),
        route().prop_map(Edit::PointBack).boxed(),
        route().prop_map(Edit::Replace).boxed(),
        route().prop_map(Edit::Drift).boxed(),
        route().prop_map(Edit::Break).boxed(),
        Just(Edit::Mend).boxed(),
        route().prop_map(Edit::NoCanary).boxed(),
        Just(Edit::NoManaged).boxed(),
        Just(Edit::NoLabels).boxed(),
        Just(Edit::NoAnnotation).boxed(),
        Just(Edit::NoAnnotation).boxed(),
        Just(Edit::SpoilAnnotation).boxed(),
        Just(Edit::NothingOfOurs).boxed(),
        Just(Edit::Metadata).boxed(),
        Just(Edit::Reapply).boxed(),
        Just(Edit::Recreate).boxed(),
        Just(Edit::Delete).boxed(),
    ];
    if setup.by_label {
        kinds.push(Just(Edit::Deselect).boxed());
        kinds.push(Just(Edit::Select).boxed());
    }
    proptest::strategy::Union::new(kinds).boxed()
}

impl History {
    /// # Errors
    /// Returns `Err` if the text is not a history.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        Ok(serde_saphyr::from_str(text)?)
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "setup: {}", flow(&self.setup))?;
        writeln!(f, "actions:")?;
        for action in &self.actions {
            writeln!(f, "- {}", flow(action))?;
        }
        Ok(())
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&flow(self))
    }
}

/// Formats a value as YAML on one line. Texts in a history need no quotes, so JSON without quotes is valid.
fn flow(value: &impl Serialize) -> String {
    let json = serde_json::to_string(value).unwrap_or_default();
    json.replace('"', "").replace(':', ": ").replace(',', ", ")
}
