//! Resolves delegation: the hosts and the full paths at which a route is served.
//!
//! A table to which others delegate has no hosts. A request must match each delegating route and the route itself, and Gloo joins
//! their prefixes:
//!
//! ```text
//! web  (a.example.com)  /product-1, /product-2 --delegate--> api  /foo, /bar
//! served: a.example.com  /product-1/foo  /product-1/bar  /product-2/foo  /product-2/bar
//! ```
//!
//! Unknown hosts and paths are marked, since an empty list of hosts would look like a result.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::once;

use gloo_types::{
    HttpRequestMatcher, HttpRoute, ObjectKey, RouteTableDoc, RouteTableSpec, StringMatch,
};

use crate::matching::{Labels, has_all};

/// The limit for the paths of one route: the combinations of its matchers with those of the delegating routes.
const MOST_PATHS: usize = 256;
/// The limit for the prefixes of one table.
const MOST_PREFIXES: usize = 256;
/// The limit for the bytes of a prefix that is joined further: a long chain of tables would have long prefixes for each table.
const MOST_BYTES: usize = 4096;
/// The limit for the delegating routes that are followed from one table to find a cycle: there may be any number of ways.
const MOST_STEPS: usize = 64;
/// The problem of each table in a cycle, and of those to which it delegates.
const CYCLE: &str = "the delegation has a cycle";

/// All tables that could be read, each with its spec.
pub(super) type Readable<'t> = Vec<(&'t RouteTableDoc, RouteTableSpec)>;
/// The selectors of delegating routes that select a table: the namespace and the name, or any if empty, and the labels. Their
/// cluster and workspace are ignored: all tables are of one cluster, and their workspaces are unknown.
type Selectors<'s> = Vec<(&'s str, &'s str, &'s Labels)>;

/// By what a selector is found: the namespace, the name and the first label.
type FoundBy<'s> = (&'s str, &'s str, Option<(&'s String, &'s String)>);
/// Delegating routes, with the positions of their tables.
type Routes<'s> = Vec<(usize, &'s HttpRoute)>;

/// What delegates to the tables of a cluster.
pub(super) struct Delegation<'s> {
    tables: &'s Readable<'s>,
    /// The delegating routes of each selector. The labels are the last part of it.
    routes: BTreeMap<FoundBy<'s>, BTreeMap<&'s Labels, Routes<'s>>>,
    /// What was found above the tables that the same selectors select. `None` as long as it is not known.
    above: BTreeMap<Selectors<'s>, Option<Above>>,
}

/// What the delegating tables give to a table.
struct Above {
    place: Served,
    parents: usize,
    /// Whether all delegating tables have a place. In a cycle and below it they have none.
    is_complete: bool,
}

/// The hosts at which a table is served, and the prefixes of its paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Served {
    /// The hosts of each root table that delegates to it, or its own hosts.
    pub(super) hosts: Vec<String>,
    /// Whether `hosts` is complete.
    pub(super) hosts_known: bool,
    /// Why `hosts` is incomplete, and violations of Gloo's API.
    pub(super) problems: BTreeSet<&'static str>,
    /// The prefixes of the delegating routes.
    prefixes: BTreeSet<Prefix>,
}

/// The joined prefixes of one chain of delegating routes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Prefix {
    text: String,
    /// Whether every matcher in the chain is a prefix, so that Gloo's result is documented.
    is_known: bool,
}

/// One path at which a route is served.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Path {
    pub(super) text: String,
    /// `exact`, `prefix`, `regex` or `suffix`. Empty if no matcher has a path.
    pub(super) kind: &'static str,
    /// Whether `text` is the full path.
    pub(super) is_known: bool,
}

/// Reads the specs of `tables`. The delegations of a table with an invalid spec are unknown. The number of parents in the
/// child's status shows that one is missing.
pub(super) fn readable<'t>(tables: impl Iterator<Item = &'t RouteTableDoc>) -> Readable<'t> {
    let tables = tables.filter_map(|table| Some((table, table.spec().ok()?)));
    tables.collect()
}

impl<'s> Delegation<'s> {
    pub(super) fn new(tables: &'s Readable<'s>) -> Self {
        let mut routes = BTreeMap::<_, BTreeMap<_, Routes<'_>>>::new();
        for (position, (_, spec)) in tables.iter().enumerate() {
            for route in &spec.http {
                let delegates = route.delegate.iter();
                for to in delegates.flat_map(|action| &action.route_tables) {
                    let label = to.labels.first_key_value();
                    let selectors = (to.namespace.as_str(), to.name.as_str(), label);
                    let selectors = routes.entry(selectors).or_default();
                    let routes = selectors.entry(&to.labels).or_default();
                    routes.push((position, route));
                }
            }
        }
        Self {
            tables,
            routes,
            above: BTreeMap::new(),
        }
    }

    /// Returns the place of `table`.
    pub(super) fn place(&mut self, table: &'s RouteTableDoc, spec: &RouteTableSpec) -> Served {
        // The places above come first. A list instead of a recursion, since a chain may be longer than the stack.
        let mut open = vec![self.selecting(table)];
        while let Some(selectors) = open.last().cloned() {
            match self.above.get(&selectors) {
                None => {
                    let parents = self.parents(&selectors, usize::MAX).into_keys();
                    let parents = parents.filter_map(|parent| self.tables.get(parent));
                    let parents = parents.map(|(parent, _)| self.selecting(parent));
                    open.extend(parents.filter(|parent| !self.above.contains_key(parent)));
                    self.above.insert(selectors, None);
                }
                Some(None) => {
                    let above = self.join(&selectors, usize::MAX, |parent, spec, _| {
                        self.known(parent, spec)
                    });
                    self.above.insert(selectors, Some(above));
                }
                Some(Some(_)) => drop(open.pop()),
            }
        }
        let (known, mut steps) = (self.known(table, spec), MOST_STEPS);
        known.unwrap_or_else(|| self.walk(table, spec, &mut Vec::new(), &mut steps))
    }

    /// Returns the place of a table that is neither in a cycle nor below one, once the places above it are known.
    fn known(&self, table: &'s RouteTableDoc, spec: &RouteTableSpec) -> Option<Served> {
        let above = self.above.get(&self.selecting(table))?.as_ref();
        let above = above.filter(|above| above.is_complete)?;
        Some(above.place(table, spec))
    }

    /// Returns the place of a table that may be in a cycle. `below` are the tables to which it delegates.
    fn walk(
        &self,
        table: &'s RouteTableDoc,
        spec: &RouteTableSpec,
        below: &mut Vec<&'s ObjectKey>,
        steps: &mut usize,
    ) -> Served {
        if below.contains(&table.key()) {
            return Served {
                problems: BTreeSet::from([CYCLE]),
                ..Served::default()
            };
        }
        below.push(table.key());
        let most = *steps;
        let above = self.join(&self.selecting(table), most, |parent, spec, routes| {
            *steps = steps.checked_sub(routes)?;
            let known = self.known(parent, spec);
            Some(known.unwrap_or_else(|| self.walk(parent, spec, below, steps)))
        });
        below.pop();
        above.place(table, spec)
    }

    /// Returns the selectors that select `table`.
    fn selecting(&self, table: &'s RouteTableDoc) -> Selectors<'s> {
        let (key, own) = (table.key(), table.labels());
        let mut selectors = Vec::new();
        for namespace in ["", &key.namespace] {
            for name in ["", &key.name] {
                for label in once(None).chain(own.iter().map(Some)) {
                    let found = self.routes.get(&(namespace, name, label));
                    let found = found.into_iter().flat_map(BTreeMap::keys);
                    let found = found.filter(|labels| has_all(own, labels));
                    selectors.extend(found.map(|labels| (namespace, name, *labels)));
                }
            }
        }
        selectors
    }

    /// Returns the tables that delegate to `selectors` with their routes, in the order of the tables. If one of the selectors has
    /// more than `most` routes, the first that are more.
    fn parents(
        &self,
        selectors: &Selectors<'s>,
        most: usize,
    ) -> BTreeMap<usize, Vec<&'s HttpRoute>> {
        let mut parents = BTreeMap::<_, Vec<_>>::new();
        for (namespace, name, labels) in selectors {
            let found_by = (*namespace, *name, labels.first_key_value());
            let routes = self.routes.get(&found_by);
            let routes = routes.and_then(|routes| routes.get(labels));
            let routes = routes.into_iter().flatten().take(most.saturating_add(1));
            for (parent, route) in routes {
                parents.entry(*parent).or_default().push(*route);
            }
        }
        parents
    }

    /// Joins what the tables that delegate to `selectors` give. `place_of` returns the place of a table with a number of routes.
    fn join(
        &self,
        selectors: &Selectors<'s>,
        most: usize,
        mut place_of: impl FnMut(&'s RouteTableDoc, &'s RouteTableSpec, usize) -> Option<Served>,
    ) -> Above {
        let mut joined = Above {
            place: Served {
                hosts_known: true,
                ..Served::default()
            },
            parents: 0,
            is_complete: true,
        };
        let (place, mut hosts) = (&mut joined.place, BTreeSet::new());
        for (parent, routes) in self.parents(selectors, most) {
            let parent = self.tables.get(parent);
            let above = parent.and_then(|(parent, spec)| place_of(parent, spec, routes.len()));
            let Some(above) = above else {
                joined.is_complete = false;
                joined.parents = usize::MAX;
                place.lack_hosts(CYCLE);
                break;
            };
            joined.parents += 1;
            place.hosts_known &= above.hosts_known;
            place.problems.extend(&above.problems);
            for host in above.hosts {
                if hosts.insert(host.clone()) {
                    place.hosts.push(host);
                }
            }
            for before in &above.prefixes {
                let matchers = routes.iter().flat_map(|route| matchers(route));
                let prefixes = matchers.map(|matcher| before.then(matcher));
                place.prefixes.extend(prefixes);
            }
        }
        if place.prefixes.len() > MOST_PREFIXES {
            let prefixes = std::mem::take(&mut place.prefixes).into_iter();
            place.prefixes = prefixes.take(MOST_PREFIXES).collect();
            let problem = "more than 256 combinations of matchers delegate to the table";
            place.problems.insert(problem);
        }
        joined
    }
}

impl Above {
    /// Returns the place of one of the tables below.
    fn place(&self, table: &RouteTableDoc, spec: &RouteTableSpec) -> Served {
        let (mut place, parents) = (self.place.clone(), self.parents);
        let status = table.status().unwrap_or_default();
        let expected = status.num_parent_route_tables;
        if expected.is_some_and(|expected| usize::try_from(expected).is_ok_and(|it| it > parents)) {
            place.lack_hosts("a table that delegates to it cannot be read");
        }
        if !spec.hosts.is_empty() {
            if parents > 0 {
                let problem = "a table to which others delegate must not have hosts";
                place.problems.insert(problem);
            }
            place.hosts = spec.hosts.clone();
            place.hosts_known = true;
            place.prefixes = Prefix::none(true);
        } else if parents == 0 {
            place.lack_hosts("it has no hosts, and no readable table delegates to it");
            place.prefixes = Prefix::none(false);
        }
        place
    }
}

impl Served {
    /// Notes why not all hosts are known.
    fn lack_hosts(&mut self, problem: &'static str) {
        self.hosts_known = false;
        self.problems.insert(problem);
    }

    /// Returns the paths of a route of the table, and whether there are more than the limit.
    pub(super) fn paths(&self, route: &HttpRoute) -> (Vec<Path>, bool) {
        let mut paths = Vec::new();
        for matcher in matchers(route) {
            paths.extend(self.prefixes.iter().map(|prefix| prefix.path(matcher)));
        }
        paths.dedup();
        let has_more = paths.len() > MOST_PATHS;
        paths.truncate(MOST_PATHS);
        (paths, has_more)
    }
}

impl Prefix {
    /// Returns the only prefix of a table to which no route delegates.
    fn none(is_known: bool) -> BTreeSet<Self> {
        let text = String::new();
        BTreeSet::from([Self { text, is_known }])
    }

    /// Appends the matcher of a delegating route.
    fn then(&self, matcher: Option<&HttpRequestMatcher>) -> Self {
        let path = self.path(matcher);
        if path.text.len() > MOST_BYTES {
            return Self {
                is_known: false,
                ..self.clone()
            };
        }
        Self {
            is_known: path.is_known && matches!(path.kind, "" | "prefix"),
            text: path.text,
        }
    }

    /// Returns the path of a matcher of a table with this prefix.
    fn path(&self, matcher: Option<&HttpRequestMatcher>) -> Path {
        let Some((kind, own)) = matcher.and_then(|matcher| text(matcher.uri.as_ref()?)) else {
            let kind = if self.text.is_empty() { "" } else { "prefix" };
            return Path {
                text: self.text.clone(),
                kind,
                is_known: self.is_known,
            };
        };
        let before = self.text.trim_end_matches('/');
        let is_below = |rest: &str| rest.is_empty() || rest.starts_with('/');
        // Gloo does not document a child that repeats the prefix, and a pattern cannot be joined to a prefix.
        let is_repeated = !before.is_empty() && own.strip_prefix(before).is_some_and(is_below);
        let is_joined = before.is_empty() || matches!(kind, "exact" | "prefix");
        let text = match own.trim_start_matches('/') {
            _ if before.is_empty() => own.to_owned(),
            "" => before.to_owned(),
            rest => format!("{before}/{rest}"),
        };
        Path {
            text,
            kind,
            is_known: self.is_known && is_joined && !is_repeated,
        }
    }
}

/// Returns the matchers of a route. `None` stands for a route without matchers, which matches every request.
fn matchers(route: &HttpRoute) -> Vec<Option<&HttpRequestMatcher>> {
    if route.matchers.is_empty() {
        return vec![None];
    }
    route.matchers.iter().map(Some).collect()
}

fn text(uri: &StringMatch) -> Option<(&'static str, &str)> {
    let texts = [
        ("exact", &uri.exact),
        ("prefix", &uri.prefix),
        ("regex", &uri.regex),
        ("suffix", &uri.suffix),
    ];
    let mut texts = texts.into_iter();
    texts.find_map(|(kind, text)| Some((kind, text.as_deref()?)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn table(name: &str, hosts: &[&str], http: Value) -> RouteTableDoc {
        RouteTableDoc::from_value(json!({
            "kind": "RouteTable",
            "metadata": {"name": name, "namespace": "shop", "labels": {"table": name}},
            "spec": {"hosts": hosts, "http": http},
        }))
        .unwrap()
    }

    /// Returns a route that delegates to the table `child` for these prefixes.
    fn to(child: &str, prefixes: &[&str]) -> Value {
        let matchers = prefixes
            .iter()
            .map(|prefix| json!({"uri": {"prefix": prefix}}));
        let matchers: Vec<_> = matchers.collect();
        json!({"matchers": matchers, "delegate": {"routeTables": [{"name": child}]}})
    }

    fn leaf(uris: &[Value]) -> Value {
        let matchers: Vec<_> = uris.iter().map(|uri| json!({"uri": uri})).collect();
        json!([{"name": "r", "matchers": matchers, "forwardTo": {}}])
    }

    fn prefix(text: &str) -> Value {
        json!({"prefix": text})
    }

    /// Returns the hosts, the paths of the only route of the first table, and the problems. `?` marks unknown hosts and paths.
    fn shown(tables: &[RouteTableDoc]) -> String {
        let readable = readable(tables.iter());
        let mut delegation = Delegation::new(&readable);
        let spec = tables[0].spec().unwrap();
        let place = delegation.place(&tables[0], &spec);
        let mark = |is_known| if is_known { "" } else { "?" };
        let (paths, _) = place.paths(&spec.http[0]);
        let paths = paths
            .iter()
            .map(|path| format!("{}{} {}", path.kind, mark(path.is_known), path.text));
        let paths = paths.collect::<Vec<_>>().join(", ");
        let problems: Vec<_> = place.problems.into_iter().collect();
        format!(
            "{}{} | {paths} | {}",
            place.hosts.join(","),
            mark(place.hosts_known),
            problems.join("; ")
        )
    }

    #[track_caller]
    fn check(tables: &[RouteTableDoc], expect: &str) {
        assert_eq!(shown(tables), expect);
    }

    #[test]
    fn each_prefix_of_the_parent_is_joined_with_each_of_the_child() {
        let parent = table(
            "web",
            &["a.io", "b.io"],
            json!([to("api", &["/product-1", "/product-2"])]),
        );
        let child = table("api", &[], leaf(&[prefix("/foo"), prefix("/bar")]));
        check(
            &[child, parent],
            "a.io,b.io | prefix /product-1/foo, prefix /product-2/foo, prefix /product-1/bar, prefix /product-2/bar | ",
        );
        let parent = table("web", &["a.io"], json!([to("api", &["/"])]));
        let child = table("api", &[], leaf(&[json!({"exact": "/productpage"})]));
        check(&[child, parent], "a.io | exact /productpage | ");
        // Without matchers in the parent or in the child.
        let parent = table("web", &["a.io"], json!([to("api", &[])]));
        let child = table("api", &[], leaf(&[]));
        check(&[child.clone(), parent], "a.io |   | ");
        let parent = table("web", &["a.io"], json!([to("api", &["/x/"])]));
        check(&[child, parent], "a.io | prefix /x/ | ");
    }

    #[test]
    fn several_levels_and_several_roots_are_joined() {
        let root = table("web", &["a.io"], json!([to("mid", &["/v1"])]));
        let other = table("web2", &["b.io"], json!([to("mid", &["/v2"])]));
        let mid = table("mid", &[], json!([to("api", &["/m"])]));
        let child = table("api", &[], leaf(&[prefix("/x")]));
        check(
            &[child, mid, root, other],
            "a.io,b.io | prefix /v1/m/x, prefix /v2/m/x | ",
        );
    }

    #[test]
    fn parents_may_select_by_labels() {
        let selector = json!({"labels": {"table": "api"}, "namespace": "shop"});
        let route = json!({"matchers": [{"uri": {"prefix": "/p"}}], "delegate": {"routeTables": [selector]}});
        let parent = table("web", &["a.io"], json!([route]));
        let child = table("api", &[], leaf(&[prefix("/x")]));
        let other = table("other", &[], leaf(&[prefix("/x")]));
        check(&[child, parent.clone()], "a.io | prefix /p/x | ");
        check(
            &[other, parent],
            "? | prefix? /x | it has no hosts, and no readable table delegates to it",
        );
    }

    #[test]
    fn unknown_paths_are_marked() {
        let child = || table("api", &[], leaf(&[prefix("/x")]));
        let below = |uri: Value| {
            let route =
                json!({"matchers": [{"uri": uri}], "delegate": {"routeTables": [{"name": "api"}]}});
            table("web", &["a.io"], json!([route]))
        };
        check(
            &[child(), below(json!({"exact": "/p"}))],
            "a.io | prefix? /p/x | ",
        );
        check(
            &[child(), below(json!({"regex": "/p.*"}))],
            "a.io | prefix? /p.*/x | ",
        );
        // Gloo does not document whether it adds the prefix again.
        check(&[child(), below(prefix("/x"))], "a.io | prefix? /x/x | ");
        let pattern = table("api", &[], leaf(&[json!({"regex": "/a.*"})]));
        check(
            &[pattern.clone(), below(prefix("/p"))],
            "a.io | regex? /p/a.* | ",
        );
        check(&[pattern, below(prefix("/"))], "a.io | regex /a.* | ");
        // A prefix of this length is left out.
        let long = format!("/{}", "p".repeat(MOST_BYTES));
        check(&[child(), below(prefix(&long))], "a.io | prefix? /x | ");
    }

    #[test]
    fn a_table_that_violates_the_api_has_a_problem() {
        let one = table("a", &[], json!([to("b", &["/a"])]));
        let two = table("b", &[], json!([to("a", &["/b"])]));
        let cycle = shown(&[one, two]);
        assert!(
            cycle.starts_with('?') && cycle.ends_with("the delegation has a cycle"),
            "{cycle}"
        );
        let parent = table("web", &["a.io"], json!([to("api", &["/p"])]));
        let hosts = table("api", &["b.io"], leaf(&[prefix("/x")]));
        check(
            &[hosts, parent],
            "b.io | prefix /x | a table to which others delegate must not have hosts",
        );
        let root = table("web", &["a.io"], leaf(&[prefix("/x")]));
        check(&[root], "a.io | prefix /x | ");
        let root = table(
            "web",
            &["a.io"],
            leaf(&[prefix("/"), json!({"regex": ".*x"})]),
        );
        check(&[root], "a.io | prefix /, regex .*x | ");
    }

    #[test]
    fn a_cycle_hides_neither_the_hosts_above_nor_those_of_the_table() {
        let root = table("web", &["a.io"], json!([to("a", &["/r"])]));
        let one = table("a", &[], json!([to("b", &["/a"])]));
        let two = table("b", &[], json!([to("a", &["/b"]), to("c", &["/c"])]));
        let below = table("c", &[], leaf(&[prefix("/x")]));
        let own = table("c", &["c.io"], leaf(&[prefix("/x")]));
        check(
            &[below, one.clone(), root.clone(), two.clone()],
            "a.io? | prefix /r/a/c/x | the delegation has a cycle",
        );
        check(
            &[own, two, root, one],
            "c.io | prefix /x | a table to which others delegate must not have hosts; the delegation has a cycle",
        );
    }

    /// Otherwise the number of ways to the top, or the length of the chain, would be the limit.
    #[test]
    fn each_of_many_tables_is_placed_once() {
        let below = |layer: usize| json!({"labels": {"layer": format!("{}", layer + 1)}});
        let layered = |layer: usize, side: usize| {
            let hosts: &[&str] = if layer == 0 { &["a.io"] } else { &[] };
            let delegate = json!({"routeTables": [below(layer)]});
            let http = json!([{"matchers": [{"uri": prefix(&format!("/{layer}"))}], "delegate": delegate}]);
            let mut table = table(&format!("{layer}-{side}"), hosts, http).into_raw();
            table["metadata"]["labels"] = json!({"layer": format!("{layer}")});
            RouteTableDoc::from_value(table).unwrap()
        };
        let layers = (0..41).rev();
        let path: String = (0..41).map(|layer| format!("/{layer}")).collect();
        let tables: Vec<_> = layers
            .flat_map(|layer| [layered(layer, 0), layered(layer, 1)])
            .collect();
        check(&tables, &format!("a.io | prefix {path} | "));
        let link = |number: usize| {
            let hosts: &[&str] = if number == 0 { &["a.io"] } else { &[] };
            table(
                &format!("{number}"),
                hosts,
                json!([to(&format!("{}", number + 1), &["/x"])]),
            )
        };
        let chain: Vec<_> = (0..10_000).rev().map(link).collect();
        let shown = shown(&chain);
        assert!(
            shown.starts_with("a.io | prefix? /x/x") && shown.len() < 5000,
            "{shown}"
        );
        // In a cycle of this size the number of ways is limited.
        let every = json!([{"delegate": {"routeTables": [{"namespace": "shop"}]}}]);
        let every = |number: usize| table(&format!("{number}"), &[], every.clone());
        let every: Vec<_> = (0..100).map(every).collect();
        check(&every, "? |  | the delegation has a cycle");
    }

    #[test]
    fn the_status_of_a_table_reveals_an_unreadable_parent() {
        let mut child = table("api", &[], leaf(&[prefix("/x")])).raw().clone();
        child["status"] = json!({"numParentRouteTables": 2});
        let child = RouteTableDoc::from_value(child).unwrap();
        assert_eq!(child.key(), &ObjectKey::new("shop", "api"));
        let parent = table("web", &["a.io"], json!([to("api", &["/p"])]));
        check(
            &[child, parent],
            "a.io? | prefix /p/x | a table that delegates to it cannot be read",
        );
    }

    #[test]
    fn the_number_of_paths_is_limited() {
        let many: Vec<_> = (0..100).map(|number| format!("/{number}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        let parent = table("web", &["a.io"], json!([to("api", &many)]));
        let uris: Vec<_> = many.iter().map(|text| prefix(text)).collect();
        let child = table("api", &[], leaf(&uris));
        let readable = readable([&child, &parent].into_iter());
        let mut delegation = Delegation::new(&readable);
        let spec = child.spec().unwrap();
        let (paths, has_more) = delegation.place(&child, &spec).paths(&spec.http[0]);
        assert_eq!((paths.len(), has_more), (256, true));
    }
}
