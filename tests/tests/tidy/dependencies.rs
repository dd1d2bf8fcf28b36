//! The check of third-party code that is built in against `deny.toml`: licences, versions, and permitted users.
//!
//! `cargo deny check` does the same, and also looks for advisories; these tests run where it is not installed. Every
//! package counts that is built for Linux on this kind of processor, including those of tests and benches.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;
use toml::Table;

use super::{assert_none, read, root};

/// Third-party packages in the product.
const PRODUCT_MAX: usize = 236;

/// All packages and their dependencies, as cargo resolves them.
struct Graph {
    packages: BTreeMap<String, Value>,
    nodes: BTreeMap<String, Value>,
}

impl Graph {
    fn resolved() -> Self {
        let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let output = Command::new(env!("CARGO"))
            .args(["metadata", "--format-version=1", "--locked", "--offline"])
            .args(["--filter-platform", &target])
            .current_dir(root())
            .output()
            .expect("cargo runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let by_id = |list: &Value| {
            let list = list.as_array().expect("a list").iter();
            list.map(|one| (text(&one["id"]).to_owned(), one.clone()))
                .collect()
        };
        Self {
            packages: by_id(&metadata["packages"]),
            nodes: by_id(&metadata["resolve"]["nodes"]),
        }
    }

    /// Returns third-party packages that are part of any build here.
    fn foreign(&self) -> impl Iterator<Item = &Value> {
        let resolved = self.packages.values();
        resolved.filter(|one| self.nodes.contains_key(text(&one["id"])) && !one["source"].is_null())
    }
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn rules() -> Table {
    read(&root().join("deny.toml"))
        .parse()
        .expect("deny.toml is TOML")
}

fn list<'a>(rules: &'a Table, section: &str, name: &str) -> &'a [toml::Value] {
    let list = rules[section].get(name).and_then(toml::Value::as_array);
    list.map_or(&[], Vec::as_slice)
}

fn texts(list: &[toml::Value]) -> Vec<&str> {
    list.iter().filter_map(toml::Value::as_str).collect()
}

#[test]
fn licences_permit_shipping() {
    let (rules, graph) = (rules(), Graph::resolved());
    let allowed = texts(list(&rules, "licenses", "allow"));
    let exceptions = list(&rules, "licenses", "exceptions");
    let mut wrong = Vec::new();
    for package in graph.foreign() {
        let (name, licence) = (text(&package["name"]), package["license"].as_str());
        let mine = exceptions
            .iter()
            .filter(|one| one["crate"].as_str() == Some(name));
        let mine = mine.filter_map(|one| one["allow"].as_array());
        let mut all = allowed.clone();
        mine.for_each(|list| all.extend(texts(list)));
        // Before SPDX expressions, a slash separated alternatives.
        let licence = licence.unwrap_or("none is named").replace('/', " OR ");
        let is_allowed = spdx::Expression::parse(&licence).is_ok_and(|expression| {
            let is_listed =
                |one: &spdx::LicenseReq| all.contains(&one.license.to_string().as_str());
            expression.evaluate(is_listed)
        });
        if !is_allowed {
            wrong.push(format!("{name}: {licence}"));
        }
    }
    assert_none("licences that deny.toml does not allow", wrong);
}

#[test]
fn duplicate_crate_versions_need_a_reason() {
    let (rules, graph) = (rules(), Graph::resolved());
    let skipped = list(&rules, "bans", "skip").iter();
    let skipped: Vec<_> = skipped.filter_map(|one| one["crate"].as_str()).collect();
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut unused: BTreeSet<&str> = skipped.iter().copied().collect();
    for package in graph.foreign() {
        let (name, version) = (text(&package["name"]), text(&package["version"]));
        let skip = skipped.iter().find(|one| {
            let (of, begins) = one.split_once('@').unwrap_or((one, ""));
            of == name && (version == begins || version.starts_with(&format!("{begins}.")))
        });
        match skip {
            Some(skip) => {
                unused.remove(skip);
            }
            None => {
                versions.entry(name).or_default().insert(version);
            }
        }
    }
    let several = versions.iter().filter(|(_, versions)| versions.len() > 1);
    let several = several.map(|(name, versions)| format!("{name}: {versions:?}"));
    assert_none("crates in more than one version", several.collect());
    let unused = unused.into_iter().map(str::to_owned).collect();
    assert_none("versions that deny.toml skips and nobody uses", unused);
}

#[test]
fn banned_items_are_used_nowhere_else() {
    let (rules, graph) = (rules(), Graph::resolved());
    let mut wrong = Vec::new();
    for ban in list(&rules, "bans", "deny") {
        let banned = ban["crate"].as_str().expect("a crate");
        let wrappers = ban.get("wrappers").and_then(toml::Value::as_array);
        let wrappers = wrappers.map_or_else(Vec::new, |list| texts(list));
        for (id, node) in &graph.nodes {
            let dependencies = node["deps"].as_array().expect("dependencies").iter();
            let mut dependencies = dependencies.map(|one| &graph.packages[text(&one["pkg"])]);
            let user = text(&graph.packages[id]["name"]);
            if dependencies.any(|one| one["name"] == banned) && !wrappers.contains(&user) {
                wrong.push(format!("{user} -> {banned}: {}", ban["reason"]));
            }
        }
    }
    assert_none("uses that deny.toml forbids", wrong);
}

/// The features are those of the product; tests use more.
#[test]
fn the_product_has_few_packages() {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--offline", "--package=meseta"])
        .args(["--edges=normal,build", "--prefix=none", "--format={p}"])
        .args(["--target", &target])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let told = String::from_utf8(output.stdout).expect("UTF-8");
    // A line has a name, a version, and further words.
    let packages = told.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let package = (words.next()?, words.next()?);
        (!package.0.starts_with("meseta")).then_some(package)
    });
    let packages: BTreeSet<_> = packages.collect();
    assert!(packages.len() > 100, "{packages:?}");
    assert!(
        packages.len() <= PRODUCT_MAX,
        "{} packages are built for the product, of {PRODUCT_MAX} at most",
        packages.len()
    );
}
