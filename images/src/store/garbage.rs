//! The choice of images, layers and completions that the store removes.
//!
//! [`plan`] is pure: it gets the state of the store, the free space and the time. Invariant: nothing that a container uses, and
//! nothing younger than [`Policy::keep_for`], is removed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use crate::descriptor::Digest;

/// The rules of a removal.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Policy {
    /// Images are removed, the longest unused first, until the disk has so many bytes free.
    pub free_bytes: u64,
    /// Images unused for so long are removed in any case.
    pub unused_for: Option<Duration>,
    /// Images and layers that were pulled or used within this time stay: their container may not exist yet.
    pub keep_for: Duration,
    /// Names of images that stay.
    pub excluded: BTreeSet<String>,
}

impl Policy {
    /// The policy of an operator's request to remove all unused images.
    pub fn remove_all_unused(excluded: BTreeSet<String>) -> Self {
        Self {
            free_bytes: 0,
            unused_for: Some(Duration::ZERO),
            keep_for: Duration::ZERO,
            excluded,
        }
    }
}

/// An image, for the choice.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ImageState {
    pub name: String,
    pub layers: Vec<Digest>,
    pub completion: Option<String>,
    /// The last use, or the pull.
    pub last_used: SystemTime,
    pub is_in_use: bool,
}

/// A layer, for the choice.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LayerState {
    pub disk_bytes: u64,
    /// The time at which the store got it.
    pub stored_at: SystemTime,
    /// Whether a container uses it.
    pub is_in_use: bool,
}

/// The store, for the choice.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Contents {
    pub images: Vec<ImageState>,
    pub layers: BTreeMap<Digest, LayerState>,
    /// Each completion, and whether a container uses it.
    pub completions: BTreeMap<String, bool>,
    /// Bytes that the disk has free.
    pub free_bytes: u64,
}

/// The objects to remove: the images first, then layers that no image needs any more.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Removal {
    pub images: Vec<String>,
    pub layers: Vec<Digest>,
    pub completions: Vec<String>,
    /// Bytes that the removal frees when the trash is empty.
    pub freed_bytes: u64,
}

/// Chooses the objects to remove.
pub fn plan(contents: &Contents, policy: &Policy, now: SystemTime) -> Removal {
    let age = |time: SystemTime| now.duration_since(time).unwrap_or_default();
    let mut candidates: Vec<_> = contents
        .images
        .iter()
        .filter(|image| !image.is_in_use && !policy.excluded.contains(&image.name))
        .filter(|image| age(image.last_used) >= policy.keep_for)
        .collect();
    candidates.sort_by_key(|image| (image.last_used, &image.name));

    let mut needs: BTreeMap<&Digest, usize> = BTreeMap::new();
    for layer in contents.images.iter().flat_map(distinct_layers) {
        *needs.entry(layer).or_default() += 1;
    }
    let is_removable =
        |state: &LayerState| !state.is_in_use && age(state.stored_at) >= policy.keep_for;
    let mut removal = Removal::default();
    for (diff_id, state) in &contents.layers {
        if !needs.contains_key(diff_id) && is_removable(state) {
            removal.layers.push(diff_id.clone());
            removal.freed_bytes += state.disk_bytes;
        }
    }
    for image in candidates {
        let is_old = policy
            .unused_for
            .is_some_and(|unused_for| age(image.last_used) >= unused_for);
        let free_bytes = contents.free_bytes.saturating_add(removal.freed_bytes);
        if !is_old && free_bytes >= policy.free_bytes {
            continue;
        }
        removal.images.push(image.name.clone());
        for layer in distinct_layers(image) {
            let Some(count) = needs.get_mut(layer) else {
                continue;
            };
            *count -= 1;
            let state = contents
                .layers
                .get(layer)
                .filter(|state| is_removable(state));
            if let Some(state) = state.filter(|_| *count == 0) {
                removal.layers.push(layer.clone());
                removal.freed_bytes += state.disk_bytes;
            }
        }
    }
    let removed: BTreeSet<_> = removal.images.iter().collect();
    let remaining = contents
        .images
        .iter()
        .filter(|image| !removed.contains(&image.name));
    let needed: BTreeSet<_> = remaining
        .filter_map(|image| image.completion.as_ref())
        .collect();
    let unneeded = contents.completions.iter();
    let unneeded = unneeded.filter(|(key, is_in_use)| !**is_in_use && !needed.contains(key));
    removal.completions = unneeded.map(|(key, _)| key.clone()).collect();
    removal
}

fn distinct_layers(image: &ImageState) -> BTreeSet<&Digest> {
    image.layers.iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn at(hours: u32) -> SystemTime {
        SystemTime::UNIX_EPOCH + HOUR * hours
    }

    fn layer(name: &str) -> Digest {
        Digest::from_content(name.as_bytes())
    }

    fn image(name: &str, layers: &[&str], last_used: u32) -> ImageState {
        ImageState {
            name: name.to_owned(),
            layers: layers.iter().map(|name| layer(name)).collect(),
            completion: None,
            last_used: at(last_used),
            is_in_use: false,
        }
    }

    /// Layers of 100 bytes each, and 50 bytes free.
    fn contents(images: Vec<ImageState>) -> Contents {
        let state = LayerState {
            disk_bytes: 100,
            stored_at: at(0),
            is_in_use: false,
        };
        let layers = images.iter().flat_map(|image| image.layers.clone());
        Contents {
            layers: layers.map(|diff_id| (diff_id, state)).collect(),
            images,
            completions: BTreeMap::new(),
            free_bytes: 50,
        }
    }

    fn policy(free_bytes: u64) -> Policy {
        Policy {
            free_bytes,
            unused_for: None,
            keep_for: HOUR,
            excluded: BTreeSet::new(),
        }
    }

    #[test]
    fn longest_unused_images_go_first() {
        let contents = contents(vec![
            image("new", &["base", "c"], 9),
            image("old", &["base", "a"], 1),
            image("middle", &["b"], 5),
        ]);
        assert_eq!(plan(&contents, &policy(50), at(10)), Removal::default());
        let removal = plan(&contents, &policy(150), at(10));
        assert_eq!(
            (removal.images, removal.freed_bytes),
            (vec!["old".to_owned()], 100)
        );
        assert_eq!(removal.layers, [layer("a")]);
        let removal = plan(&contents, &policy(151), at(10));
        assert_eq!(removal.images, ["old", "middle"]);
        // The last image takes the common layer with it.
        let removal = plan(&contents, &policy(u64::MAX), at(10));
        assert_eq!((removal.layers.len(), removal.freed_bytes), (4, 400));
    }

    #[test]
    fn used_new_and_excluded_images_stay() {
        let mut used = image("used", &["a"], 1);
        used.is_in_use = true;
        let new = image("new", &["b"], 10);
        let excluded = image("excluded", &["c"], 1);
        let contents = contents(vec![used, new, excluded]);
        let mut policy = policy(u64::MAX);
        policy.excluded.insert("excluded".to_owned());
        assert_eq!(plan(&contents, &policy, at(10)), Removal::default());
    }

    #[test]
    fn unused_images_go_by_age() {
        let contents = contents(vec![image("old", &["a"], 1), image("new", &["b"], 8)]);
        let mut policy = policy(0);
        policy.unused_for = Some(HOUR * 5);
        let removal = plan(&contents, &policy, at(10));
        assert_eq!(removal.images, ["old"]);
        let all = Policy::remove_all_unused(BTreeSet::new());
        assert_eq!(plan(&contents, &all, at(10)).images, ["old", "new"]);
    }

    #[test]
    fn unneeded_layers_go_unless_used() {
        let mut contents = contents(Vec::new());
        for (name, stored_at, is_in_use) in [("a", 1, false), ("b", 10, false), ("c", 1, true)] {
            let state = LayerState {
                disk_bytes: 7,
                stored_at: at(stored_at),
                is_in_use,
            };
            contents.layers.insert(layer(name), state);
        }
        contents.completions = BTreeMap::from([("x".to_owned(), false), ("y".to_owned(), true)]);
        let removal = plan(&contents, &policy(0), at(10));
        assert_eq!(removal.layers, [layer("a")]);
        assert_eq!(removal.completions, ["x"]);
        assert_eq!(removal.freed_bytes, 7);
    }

    #[test]
    fn clock_set_back_removes_nothing() {
        let contents = contents(vec![image("future", &["a"], 20)]);
        assert_eq!(
            plan(&contents, &policy(u64::MAX), at(10)),
            Removal::default()
        );
    }
}
