//! Reads the tables, and resolves delegation: the routes of a root table and of all tables to which it delegates.
//!
//! ```text
//! root table            child table               resolved routes
//! - uri: {prefix: /a}   - uri: {prefix: /a/b}     matchers /a/b of the child, which the parent includes
//!   delegate: child
//! - uri: {prefix: /b}   - uri: {prefix: /c}       refused: no request matches /b and /c, so all requests to /b get
//!   delegate: other     - uri: {prefix: /b/d}     status 500
//! ```

use std::collections::{BTreeMap, BTreeSet};

use gloo_types::{
    DelegateAction, HttpRequestMatcher, HttpRoute, ObjectKey, ObjectSelector, RouteTableDoc,
    RouteTableSpec, SortMethod,
};
use serde_json::{Value, json};

use crate::{Reason, Refusal, Untranslated, fields, matcher};

/// The names of redirect statuses in the API. Some tables in use have the number instead.
const REDIRECT_CODES: [(u64, &str); 5] = [
    (301, "MOVED_PERMANENTLY"),
    (302, "FOUND"),
    (303, "SEE_OTHER"),
    (307, "TEMPORARY_REDIRECT"),
    (308, "PERMANENT_REDIRECT"),
];

/// A table whose spec could be decoded.
pub(crate) struct Table {
    pub(crate) key: ObjectKey,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) spec: RouteTableSpec,
    /// The JSON of the table, for fields that the typed view does not have.
    pub(crate) raw: Value,
}

/// A route with an action other than `delegate`, and what it inherits from the tables that delegate to it. A delegating
/// route that cannot be resolved is a leaf, too.
pub(crate) struct Leaf<'a> {
    pub(crate) table: &'a Table,
    /// Position in `spec.http` of the table.
    index: usize,
    pub(crate) route: &'a HttpRoute,
    /// Its matchers, combined with those of the parents; never empty.
    pub(crate) matchers: Vec<HttpRequestMatcher>,
    /// Labels of its table and of the parents, which it inherits.
    pub(crate) inherited: BTreeMap<String, String>,
    /// Why the delegation cannot be resolved.
    pub(crate) refused: Option<Refusal>,
}

/// What the routes of a table inherit from the tables that delegate to it.
struct Inherited<'a> {
    matchers: Vec<HttpRequestMatcher>,
    labels: BTreeMap<String, String>,
    path: Vec<&'a ObjectKey>,
}

impl Table {
    /// Decodes a table, and adds unknown fields to `untranslated`. Returns `None` if the spec cannot be decoded.
    pub(crate) fn read(
        document: &RouteTableDoc,
        untranslated: &mut Vec<Untranslated>,
    ) -> Option<Self> {
        let name = format!("RouteTable {}", document.key());
        let raw = with_named_redirect_codes(document.raw());
        let spec = RouteTableDoc::from_value(raw.clone()).and_then(|table| table.spec());
        let found = fields::unknown_in_table(&raw).into_iter();
        untranslated.extend(found.map(|refusal| refusal.of(&name)));
        match spec {
            Ok(spec) => Some(Self {
                key: document.key().clone(),
                labels: document.labels().clone(),
                spec,
                raw,
            }),
            Err(error) => {
                let refusal = Refusal::new("spec", Reason::Unreadable(chain(&error)));
                untranslated.push(refusal.of(name));
                None
            }
        }
    }

    /// Whether the table has hosts, so that requests reach it without a delegation.
    pub(crate) fn is_root(&self) -> bool {
        !self.spec.hosts.is_empty()
    }

    pub(crate) fn name(&self) -> String {
        format!("RouteTable {}", self.key)
    }

    /// The time of its creation, in the form of Kubernetes, which sorts as text.
    fn created(&self) -> Option<&str> {
        let created = self.raw.pointer("/metadata/creationTimestamp")?;
        created.as_str()
    }
}

impl Leaf<'_> {
    /// `namespace/table/route`, with the position if the route has no name.
    pub(crate) fn name(&self) -> String {
        match self.route.name.as_str() {
            "" => format!("{}/{}", self.table.key, self.index),
            name => format!("{}/{name}", self.table.key),
        }
    }

    /// The path of the route in its table.
    pub(crate) fn path(&self) -> String {
        format!("spec.http[{}]", self.index)
    }

    /// The JSON of the route.
    pub(crate) fn raw(&self) -> Option<&Value> {
        self.table
            .raw
            .pointer(&format!("/spec/http/{}", self.index))
    }
}

/// Resolves the routes of a root table, in order of precedence. Adds the tables that it visits to `reached`.
pub(crate) fn leaves<'a>(
    root: &'a Table,
    tables: &'a [Table],
    reached: &mut BTreeSet<ObjectKey>,
) -> Vec<Leaf<'a>> {
    let above = Inherited {
        matchers: vec![HttpRequestMatcher::default()],
        labels: BTreeMap::new(),
        path: Vec::new(),
    };
    routes_below(root, tables, &above, reached)
}

fn routes_below<'a>(
    table: &'a Table,
    tables: &'a [Table],
    above: &Inherited<'a>,
    reached: &mut BTreeSet<ObjectKey>,
) -> Vec<Leaf<'a>> {
    reached.insert(table.key.clone());
    let mut inherited = above.labels.clone();
    inherited.extend(table.labels.clone());
    let mut leaves = Vec::new();
    for (index, route) in table.spec.http.iter().enumerate() {
        let mut leaf = Leaf {
            table,
            index,
            route,
            matchers: above.matchers.clone(),
            inherited: inherited.clone(),
            refused: None,
        };
        match joined(&above.matchers, &route.matchers) {
            Ok(matchers) => leaf.matchers = matchers,
            Err(refusal) => leaf.refused = Some(refusal),
        }
        match &route.delegate {
            Some(delegate) if leaf.refused.is_none() => {
                let mut path = above.path.clone();
                path.push(&table.key);
                match children(table, delegate, tables, &path) {
                    Ok(found) => {
                        leaves.extend(delegated(leaf, delegate, &found, tables, path, reached));
                    }
                    Err(refusal) => {
                        leaf.refused = Some(refusal.within("delegate"));
                        leaves.push(leaf);
                    }
                }
            }
            _ => leaves.push(leaf),
        }
    }
    leaves
}

/// The routes of the tables that a route delegates to. If matchers conflict, it is the delegating route itself, refused.
fn delegated<'a>(
    mut leaf: Leaf<'a>,
    delegate: &DelegateAction,
    children: &[&'a Table],
    tables: &'a [Table],
    path: Vec<&'a ObjectKey>,
    reached: &mut BTreeSet<ObjectKey>,
) -> Vec<Leaf<'a>> {
    let mut labels = leaf.inherited.clone();
    labels.extend(leaf.route.labels.clone());
    let below_it = Inherited {
        matchers: leaf.matchers.clone(),
        labels,
        path,
    };
    let routes = children
        .iter()
        .flat_map(|child| routes_below(child, tables, &below_it, reached));
    let mut routes: Vec<Leaf<'a>> = routes.collect();
    // A conflict in a deeper table is already reported by the delegating route of that level, as `ConflictWith`.
    let is_conflict = |route: &&Leaf<'_>| {
        let refused = route.refused.as_ref();
        refused.is_some_and(|refused| refused.reason == Reason::Conflict)
    };
    if let Some(route) = routes.iter().find(is_conflict) {
        let child = format!("{}: {}", route.table.name(), route.path());
        leaf.refused = Some(Refusal::new("delegate", Reason::ConflictWith(child)));
        return vec![leaf];
    }
    if delegate.sort_method == SortMethod::RouteSpecificity {
        // A route is as specific as its most specific matcher. The sort is stable, so that ties keep the order of the tables.
        routes.sort_by_cached_key(|leaf| leaf.matchers.iter().map(matcher::specificity).min());
    }
    routes
}

/// The tables to which a route of `table` delegates, in the order of their weights. Tables of one weight are in the order of the
/// selectors, and the tables of one selector are in order of their creation.
fn children<'a>(
    table: &Table,
    delegate: &DelegateAction,
    tables: &'a [Table],
    path: &[&ObjectKey],
) -> Result<Vec<&'a Table>, Refusal> {
    if !delegate.allowed_routes.is_empty() {
        return Err(Refusal::new("allowedRoutes", Reason::NotModelled));
    }
    if let SortMethod::Other(method) = &delegate.sort_method {
        return Err(Refusal::new("sortMethod", Reason::Invalid(method.clone())));
    }
    let mut found = Vec::new();
    for selector in &delegate.route_tables {
        let mut selected: Vec<&Table> = tables.iter().collect();
        selected.retain(|child| selects(selector, child));
        // `tables` is in order of names, which decides if no time is known.
        selected.sort_by_key(|child| child.created());
        for child in selected {
            let is_known = found.iter().any(|known: &&Table| known.key == child.key);
            if !child.is_root() && !is_known {
                found.push(child);
            }
        }
    }
    if found.is_empty() {
        return Err(Refusal::new("routeTables", Reason::NoTable));
    }
    if let Some(child) = found.iter().find(|child| path.contains(&&child.key)) {
        let circle = format!("{} and {}", table.key, child.key);
        return Err(Refusal::new("routeTables", Reason::Circle(circle)));
    }
    found.sort_by_key(|child| std::cmp::Reverse(child.spec.weight));
    Ok(found)
}

/// Whether a selector selects a table. The cluster and the workspace are not compared.
fn selects(selector: &ObjectSelector, table: &Table) -> bool {
    let fits = |wanted: &str, found: &str| wanted.is_empty() || wanted == found;
    let has = |(key, value): (&String, &String)| table.labels.get(key) == Some(value);
    fits(&selector.name, &table.key.name)
        && fits(&selector.namespace, &table.key.namespace)
        && selector.labels.iter().all(has)
}

/// Combines each matcher of a route with each matcher that the route inherits.
fn joined(
    parent: &[HttpRequestMatcher],
    own: &[HttpRequestMatcher],
) -> Result<Vec<HttpRequestMatcher>, Refusal> {
    let any = [HttpRequestMatcher::default()];
    let own = if own.is_empty() { &any } else { own };
    let mut joined = Vec::new();
    let mut conflict = None;
    for (index, child) in own.iter().enumerate() {
        for above in parent {
            match matcher::both(above, child) {
                Ok(both) => joined.push(both),
                // Drop a combination that no request can meet. If none is left, the route is invalid.
                Err(refusal) if refusal.reason == Reason::Conflict => {
                    conflict = Some(refusal.within(&format!("matchers[{index}]")));
                }
                Err(refusal) => return Err(refusal.within(&format!("matchers[{index}]"))),
            }
        }
    }
    match conflict {
        Some(conflict) if joined.is_empty() => Err(conflict),
        _ => Ok(joined),
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}

/// Replaces the status of each redirect that is written as a number by its name.
fn with_named_redirect_codes(document: &Value) -> Value {
    let mut document = document.clone();
    let routes = document
        .pointer_mut("/spec/http")
        .and_then(Value::as_array_mut);
    for route in routes.into_iter().flatten() {
        if let Some(code) = route.pointer_mut("/redirect/responseCode")
            && let Some(number) = code.as_u64()
        {
            let known = REDIRECT_CODES.iter().find(|(known, _)| *known == number);
            *code = known.map_or_else(|| json!(number.to_string()), |(_, name)| json!(name));
        }
    }
    document
}
