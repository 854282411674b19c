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

use std::collections::BTreeSet;

use gloo_types::{
    HttpRequestMatcher, HttpRoute, ObjectSelector, RouteTableDoc, RouteTableSpec, StringMatch,
};

use crate::matching::has_all;

/// The limit for the paths of one route: the combinations of its matchers with those of the delegating routes.
const MOST_PATHS: usize = 256;
/// The limit for the prefixes of one table.
const MOST_PREFIXES: usize = 256;

/// All tables that could be read, each with its spec.
pub(super) struct Delegation<'t>(Vec<(&'t RouteTableDoc, RouteTableSpec)>);

/// The hosts at which a table is served, and the prefixes of its paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
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

impl<'t> Delegation<'t> {
    pub(super) fn new(tables: impl Iterator<Item = &'t RouteTableDoc>) -> Self {
        // The delegations of a table with an invalid spec are unknown. The number of parents in the child's status shows that
        // one is missing.
        Self(
            tables
                .filter_map(|table| Some((table, table.spec().ok()?)))
                .collect(),
        )
    }

    /// Returns the place of `table`.
    pub(super) fn place(&self, table: &RouteTableDoc, spec: &RouteTableSpec) -> Place {
        self.place_below(table, spec, &mut Vec::new())
    }

    /// Returns the place of `table`. `below` are the tables to which it delegates, which detects a cycle.
    fn place_below<'a>(
        &'a self,
        table: &'a RouteTableDoc,
        spec: &RouteTableSpec,
        below: &mut Vec<&'a RouteTableDoc>,
    ) -> Place {
        let mut place = Place {
            hosts_known: true,
            ..Place::default()
        };
        if below.iter().any(|other| other.key() == table.key()) {
            place.hosts_known = false;
            place.problems.insert("the delegation has a cycle");
            return place;
        }
        below.push(table);
        let mut parents = 0;
        for (parent, parent_spec) in &self.0 {
            let routes = parent_spec
                .http
                .iter()
                .filter(|route| delegates(route, table));
            let routes: Vec<_> = routes.collect();
            if routes.is_empty() {
                continue;
            }
            parents += 1;
            let above = self.place_below(parent, parent_spec, below);
            place.hosts_known &= above.hosts_known;
            place.problems.extend(&above.problems);
            for host in above.hosts {
                if !place.hosts.contains(&host) {
                    place.hosts.push(host);
                }
            }
            for before in &above.prefixes {
                let matchers = routes.iter().flat_map(|route| matchers(route));
                place
                    .prefixes
                    .extend(matchers.map(|matcher| before.then(matcher)));
            }
        }
        below.pop();
        if place.prefixes.len() > MOST_PREFIXES {
            place.prefixes = place.prefixes.into_iter().take(MOST_PREFIXES).collect();
            place
                .problems
                .insert("more than 256 combinations of matchers delegate to the table");
        }
        let status = table.status().unwrap_or_default();
        let expected = status.num_parent_route_tables;
        if expected.is_some_and(|expected| usize::try_from(expected).is_ok_and(|it| it > parents)) {
            place.hosts_known = false;
            place
                .problems
                .insert("a table that delegates to it cannot be read");
        }
        if !spec.hosts.is_empty() {
            if parents > 0 {
                place
                    .problems
                    .insert("a table to which others delegate must not have hosts");
            }
            place.hosts = spec.hosts.clone();
            place.hosts_known = true;
            place.prefixes = BTreeSet::from([Prefix {
                text: String::new(),
                is_known: true,
            }]);
        } else if parents == 0 {
            place.hosts_known = false;
            place
                .problems
                .insert("it has no hosts, and no readable table delegates to it");
            place.prefixes = BTreeSet::from([Prefix {
                text: String::new(),
                is_known: false,
            }]);
        }
        place
    }
}

impl Place {
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
    /// Appends the matcher of a delegating route.
    fn then(&self, matcher: Option<&HttpRequestMatcher>) -> Self {
        let path = self.path(matcher);
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

/// Whether `route` delegates to `table`.
fn delegates(route: &HttpRoute, table: &RouteTableDoc) -> bool {
    let mut selectors = route
        .delegate
        .iter()
        .flat_map(|action| &action.route_tables);
    selectors.any(|selector| selects(selector, table))
}

/// Whether `selector` selects `table`. Its cluster and workspace are ignored: all tables are of one cluster, and their
/// workspaces are unknown.
fn selects(selector: &ObjectSelector, table: &RouteTableDoc) -> bool {
    let key = table.key();
    let is = |wanted: &str, name: &str| wanted.is_empty() || wanted == name;
    is(&selector.name, &key.name)
        && is(&selector.namespace, &key.namespace)
        && has_all(table.labels(), &selector.labels)
}

#[cfg(test)]
mod tests {
    use gloo_types::ObjectKey;
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
        let delegation = Delegation::new(tables.iter());
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
        let delegation = Delegation::new([&child, &parent].into_iter());
        let spec = child.spec().unwrap();
        let (paths, has_more) = delegation.place(&child, &spec).paths(&spec.http[0]);
        assert_eq!((paths.len(), has_more), (256, true));
    }
}
