//! A world that is ready to be served: the virtual hosts of the owner's tables, of the sources alone, and of the tables after
//! each step.

use anyhow::Result;
use serde_json::Value;

use super::Fault;
use crate::meaning::judgement::service_of;
use crate::meaning::play::{Snapshot, play};
use crate::meaning::served::{Host, OwnerRoute, Unserved, hosts, number, virtual_host};
use crate::meaning::world::World;

pub(super) struct Prepared<'w> {
    pub(super) world: &'w World,
    /// The first label of the host that serves the owner's tables.
    pub(super) owner: String,
    pub(super) routes: Vec<OwnerRoute>,
    /// The sources of Rollouts with header routes on top.
    pub(super) sources: Vec<Source>,
    pub(super) steps: Vec<Served>,
    hosts: Vec<Value>,
}

/// A source that is served alone.
pub(super) struct Source {
    pub(super) who: usize,
    /// The first label of its host.
    pub(super) tag: String,
    pub(super) route: OwnerRoute,
}

/// The tables after a step.
pub(super) struct Served {
    pub(super) snapshot: Snapshot,
    /// The first label of the host, or why it is not served.
    pub(super) tag: Result<String, Unserved>,
}

impl<'w> Prepared<'w> {
    /// Plays a world; `None` if the model cannot translate the owner's tables.
    pub(super) async fn of(
        world: &'w World,
        index: usize,
        fault: Option<Fault>,
    ) -> Result<Option<Self>> {
        let Ok(mut owned) = hosts(&world.tables, &world.mirrors, &world.timeouts)? else {
            return Ok(None);
        };
        let mut prepared = Self {
            world,
            owner: format!("b{index}"),
            routes: number(&mut owned),
            sources: Vec::new(),
            steps: Vec::new(),
            hosts: Vec::new(),
        };
        prepared.sources(index, &owned);
        let tag = prepared.owner.clone();
        prepared.add(&tag, &owned, None);
        let mut known: Vec<(Vec<Value>, Vec<Value>, String)> = Vec::new();
        for snapshot in play(world).await? {
            let (tables, mirrors) = (&snapshot.tables, &snapshot.mirrors);
            let same = known
                .iter()
                .find(|(known, policies, _)| known == tables && policies == mirrors);
            let tag = match same {
                Some((_, _, tag)) => Ok(tag.clone()),
                None => match hosts(tables, mirrors, &world.timeouts)? {
                    Ok(hosts) => {
                        let tag = format!("a{index}-{}", snapshot.step);
                        prepared.add(&tag, &hosts, fault);
                        known.push((tables.clone(), mirrors.clone(), tag.clone()));
                        Ok(tag)
                    }
                    Err(problem) => Err(problem),
                },
            };
            prepared.steps.push(Served { snapshot, tag });
        }
        Ok(Some(prepared))
    }

    /// Forgets all steps but the last one.
    pub(super) fn keep_last_step(&mut self) {
        let before = self.steps.len().saturating_sub(1);
        self.steps.drain(..before);
    }

    /// All virtual hosts.
    pub(super) fn virtual_hosts(&self) -> impl Iterator<Item = Value> {
        self.hosts.iter().cloned()
    }

    fn add(&mut self, tag: &str, hosts: &[Host], fault: Option<Fault>) {
        for host in hosts {
            let mut host = virtual_host(tag, host);
            if let Some(fault) = fault {
                fault(&mut host);
            }
            self.hosts.push(host);
        }
    }

    fn sources(&mut self, index: usize, owned: &[Host]) {
        let http = owned.iter().filter(|host| host.id.is_empty());
        let routes: Vec<Value> = http.flat_map(|host| host.routes.clone()).collect();
        for (who, canary) in self.world.canaries.iter().enumerate() {
            for route in routes.iter().filter(|_| canary.is_top) {
                let tag = format!("s{index}-{}", self.sources.len());
                let hosts = &mut [Host {
                    id: String::new(),
                    routes: vec![route.clone()],
                }];
                let Some(source) = number(hosts).pop() else {
                    continue;
                };
                let mut clusters = source.clusters.iter();
                if clusters.any(|(cluster, _)| service_of(cluster) == canary.name) {
                    self.add(&tag, hosts, None);
                    self.sources.push(Source {
                        who,
                        tag,
                        route: source,
                    });
                }
            }
        }
    }
}
