//! Short forms of resources: `cpus:2;mem(role):10;disk(+role{k=v}+role/sub)[id1]*:50;cpus!:1;disk<mount>:9`.
//!
//! Parentheses hold the reservations, bottom first, dynamic ones with `+`; brackets hold the id of a volume; `*`
//! means shared, `!` revocable, `<mount>` a file system of its own. Ranges `[1-5]` and sets `{a,b}` are those of
//! Mesos.

use meseta_resources::{
    Disk, DiskSource, Label, Labels, Persistence, Reservation, Resource, ResourceName, Resources,
    Role, Value, Volume, VolumeMode,
};

pub(crate) fn parse(text: &str) -> Resources {
    let mut all = Resources::new();
    for item in split_items(text) {
        let (head, value) = split_value(&item);
        let plain = format!("{}:{value}", name_of(head));
        let value = Resources::parse(&plain, &Role::star())
            .unwrap_or_else(|error| panic!("{item}: {error}"));
        let Some(value) = value.iter().next().map(|resource| resource.value().clone()) else {
            continue;
        };
        all.insert(build(head, value));
    }
    all
}

/// Splits at each `;` outside of brackets.
fn split_items(text: &str) -> Vec<String> {
    text.split(';')
        .filter(|item| !item.is_empty() && *item != "-")
        .map(Into::into)
        .collect()
}

/// Splits at the last `:` before the value.
fn split_value(item: &str) -> (&str, &str) {
    let depth_zero = |(at, _): &(usize, &str)| {
        let head = &item[..*at];
        head.matches(['(', '{', '[']).count() == head.matches([')', '}', ']']).count()
    };
    let (at, _) = item
        .match_indices(':')
        .find(depth_zero)
        .unwrap_or_else(|| panic!("{item}"));
    (&item[..at], &item[at + 1..])
}

fn name_of(head: &str) -> &str {
    head.split(['(', '[', '*', '!', '<']).next().unwrap_or(head)
}

fn between(text: &str, open: char, close: char) -> Option<&str> {
    let start = text.find(open)? + 1;
    Some(&text[start..start + text[start..].find(close)?])
}

fn build(head: &str, value: Value) -> Resource {
    let name = ResourceName::new(name_of(head)).expect("a name");
    let mut parts = Resource::plain(name, value).into_parts();
    if let Some(stack) = between(head, '(', ')') {
        parts.reservations = stack_of(stack);
    }
    let rest = head.split(')').next_back().unwrap_or(head);
    let persistence = between(rest, '[', ']').map(|id| Persistence {
        id: id.into(),
        principal: None,
    });
    let source = rest.contains("<mount>").then(|| DiskSource::mount(None));
    if persistence.is_some() || source.is_some() {
        let volume = persistence.as_ref().map(|_| Volume {
            container_path: "data".into(),
            host_path: None,
            mode: VolumeMode::ReadWrite,
        });
        parts.disk = Some(Disk {
            persistence,
            volume,
            source,
        });
    }
    parts.shared = rest.contains('*');
    parts.revocable = rest.contains('!');
    Resource::new(parts).unwrap_or_else(|error| panic!("{head}: {error}"))
}

fn stack_of(stack: &str) -> Vec<Reservation> {
    let mut reservations = Vec::new();
    for (at, entry) in stack.split('+').enumerate() {
        if entry.is_empty() {
            continue;
        }
        let (role, labels) = entry.split_once('{').unwrap_or((entry, ""));
        let role = Role::new(role).unwrap_or_else(|error| panic!("{stack}: {error}"));
        let mut reservation = if at == 0 {
            Reservation::fixed(role)
        } else {
            Reservation::dynamic(role, None)
        };
        if let Some((key, value)) = labels.trim_end_matches('}').split_once('=') {
            let label = Label {
                key: key.into(),
                value: Some(value.into()),
            };
            reservation.labels = Labels::new(vec![label]);
        }
        reservations.push(reservation);
    }
    reservations
}

pub(crate) fn write(resources: &Resources) -> String {
    let mut items = Vec::new();
    for resource in resources {
        let copies = if resource.is_shared() {
            resources.count(resource)
        } else {
            1
        };
        for _ in 0..copies {
            items.push(write_one(resource));
        }
    }
    if items.is_empty() {
        "nothing".into()
    } else {
        items.join(";")
    }
}

fn write_one(resource: &Resource) -> String {
    let mut text = resource.name().to_string();
    if resource.is_reserved() {
        text.push('(');
        for (at, entry) in resource.reservations().iter().enumerate() {
            if at > 0 || entry.kind == meseta_resources::ReservationKind::Dynamic {
                text.push('+');
            }
            text.push_str(entry.role.as_str());
            for label in entry.labels.iter() {
                let value = label.value.as_deref().unwrap_or("");
                text.push_str(&format!("{{{}={value}}}", label.key));
            }
        }
        text.push(')');
    }
    if let Some(disk) = resource.disk() {
        if let Some(persistence) = &disk.persistence {
            text.push_str(&format!("[{}]", persistence.id));
        }
        if disk.source.is_some() {
            text.push_str("<mount>");
        }
    }
    if resource.is_shared() {
        text.push('*');
    }
    if resource.is_revocable() {
        text.push('!');
    }
    format!("{text}:{}", resource.value())
}
