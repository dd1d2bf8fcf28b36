//! Everything that may be allowed or forbidden, under the names that Mesos's ACLs have for it.

/// What the objects of an action are, which decides how an entry is compared with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objects {
    /// Values that must be the same.
    Exact,
    /// Roles: `a/%` stands for all that are below `a`.
    Roles,
    /// Paths of endpoints that may be named at all.
    Paths,
    /// All or none of them.
    Whole,
}

macro_rules! actions {
    ($(#[doc = $doc:literal] $name:ident $key:literal $object:literal $objects:ident;)*) => {
        /// One kind of action that ACLs allow or deny.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Action { $(#[doc = $doc] $name,)* }

        impl Action {
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Its list in a file of ACLs, for example `run_tasks`.
            #[must_use]
            pub const fn key(self) -> &'static str {
                match self { $(Self::$name => $key,)* }
            }

            /// What an entry of that list calls its objects, for example `users`.
            #[must_use]
            pub const fn object_key(self) -> &'static str {
                match self { $(Self::$name => $object,)* }
            }

            /// What it is, in a sentence.
            #[cfg(test)]
            const fn meaning(self) -> &'static str {
                match self { $(Self::$name => $doc,)* }
            }

            /// How objects are compared.
            #[must_use]
            pub const fn objects(self) -> Objects {
                match self { $(Self::$name => Objects::$objects,)* }
            }
        }
    };
}

actions! {
    /// Subscribe with a role.
    RegisterFramework "register_frameworks" "roles" Roles;
    /// Launch as a user.
    RunTask "run_tasks" "users" Exact;
    /// End a framework of this principal.
    TeardownFramework "teardown_frameworks" "framework_principals" Exact;
    /// Reserve for a role.
    ReserveResources "reserve_resources" "roles" Roles;
    /// Take back what this principal reserved.
    UnreserveResources "unreserve_resources" "reserver_principals" Exact;
    /// Make a volume in a role's reservation.
    CreateVolume "create_volumes" "roles" Roles;
    /// Destroy what this principal made.
    DestroyVolume "destroy_volumes" "creator_principals" Exact;
    /// Grow or shrink a role's volume.
    ResizeVolume "resize_volumes" "roles" Roles;
    /// Make a block disk.
    CreateBlockDisk "create_block_disks" "roles" Roles;
    /// Destroy a block disk.
    DestroyBlockDisk "destroy_block_disks" "roles" Roles;
    /// Make a mount disk.
    CreateMountDisk "create_mount_disks" "roles" Roles;
    /// Destroy a mount disk.
    DestroyMountDisk "destroy_mount_disks" "roles" Roles;
    /// Destroy a raw disk.
    DestroyRawDisk "destroy_raw_disks" "roles" Roles;
    /// See a role's quota.
    GetQuota "get_quotas" "roles" Roles;
    /// Set or remove a role's quota.
    UpdateQuota "update_quotas" "roles" Roles;
    /// See a role, its weight and what is reserved for it.
    ViewRole "view_roles" "roles" Roles;
    /// Set a role's weight.
    UpdateWeight "update_weights" "roles" Roles;
    /// Read an endpoint by its path.
    GetEndpoint "get_endpoints" "paths" Paths;
    /// See a framework of this user.
    ViewFramework "view_frameworks" "users" Exact;
    /// See a task that runs as this user.
    ViewTask "view_tasks" "users" Exact;
    /// See an executor that runs as this user.
    ViewExecutor "view_executors" "users" Exact;
    /// Read the sandbox of what runs as this user.
    AccessSandbox "access_sandboxes" "users" Exact;
    /// Read a daemon's own log.
    AccessMesosLog "access_mesos_logs" "logs" Whole;
    /// See the flags of a daemon.
    ViewFlags "view_flags" "flags" Whole;
    /// Change how much a daemon logs.
    SetLogLevel "set_log_level" "level" Whole;
    /// Join as an agent.
    RegisterAgent "register_agents" "agents" Whole;
    /// Change the schedule of maintenance.
    UpdateMaintenanceSchedule "update_maintenance_schedules" "machines" Whole;
    /// See the schedule of maintenance.
    GetMaintenanceSchedule "get_maintenance_schedules" "machines" Whole;
    /// Take machines down for maintenance.
    StartMaintenance "start_maintenances" "machines" Whole;
    /// Bring machines up after maintenance.
    StopMaintenance "stop_maintenances" "machines" Whole;
    /// See which machines drain or are down.
    GetMaintenanceStatus "get_maintenance_statuses" "machines" Whole;
    /// Drain an agent of its tasks.
    DrainAgent "drain_agents" "agents" Whole;
    /// Give an agent no more work.
    DeactivateAgent "deactivate_agents" "agents" Whole;
    /// Give it work again.
    ReactivateAgent "reactivate_agents" "agents" Whole;
    /// Say that an agent is gone for good.
    MarkAgentGone "mark_agents_gone" "agents" Whole;
    /// Run a nested container's command as a user.
    LaunchNestedContainerAsUser "launch_nested_containers_as_user" "users" Exact;
    /// Run a nested container below an executor of this user.
    LaunchNestedContainerUnderParent
        "launch_nested_containers_under_parent_with_user" "users" Exact;
    /// Run a session's command as a user.
    LaunchNestedContainerSessionAsUser "launch_nested_container_sessions_as_user" "users" Exact;
    /// Run a session below an executor of this user.
    LaunchNestedContainerSessionUnderParent
        "launch_nested_container_sessions_under_parent_with_user" "users" Exact;
    /// Kill a nested container.
    KillNestedContainer "kill_nested_containers" "users" Exact;
    /// Wait for a nested container.
    WaitNestedContainer "wait_nested_containers" "users" Exact;
    /// Remove a nested container.
    RemoveNestedContainer "remove_nested_containers" "users" Exact;
    /// Write to a container.
    AttachContainerInput "attach_containers_input" "users" Exact;
    /// Read what a container writes.
    AttachContainerOutput "attach_containers_output" "users" Exact;
    /// See a container of this user.
    ViewContainer "view_containers" "users" Exact;
    /// Run a container of no executor.
    LaunchStandaloneContainer "launch_standalone_containers" "users" Whole;
    /// Kill a standalone container.
    KillStandaloneContainer "kill_standalone_containers" "users" Whole;
    /// Wait for a standalone container.
    WaitStandaloneContainer "wait_standalone_containers" "users" Whole;
    /// Remove a standalone container.
    RemoveStandaloneContainer "remove_standalone_containers" "users" Whole;
    /// See a standalone container.
    ViewStandaloneContainer "view_standalone_containers" "users" Whole;
    /// Configure a resource provider.
    ModifyResourceProviderConfig "modify_resource_provider_configs" "resource_providers" Whole;
    /// Say that a resource provider is gone.
    MarkResourceProviderGone "mark_resource_providers_gone" "resource_providers" Whole;
    /// See a resource provider.
    ViewResourceProvider "view_resource_providers" "resource_providers" Whole;
    /// Remove images that nobody uses.
    PruneImages "prune_images" "images" Whole;
}

/// Paths that `get_endpoints` may name.
pub const PATHS: &[&str] = &[
    "/containers",
    "/files/debug",
    "/logging/toggle",
    "/metrics",
    "/metrics/snapshot",
    "/monitor/statistics",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn reference() -> String {
        let mut page = String::from(
            "# ACL actions\n\nWhat `--acls` of either daemon may speak of, in Mesos's format, and what an entry calls \
             its objects; an example is in\n[security.md](security.md). This page is made from the declarations \
             (`MESETA_BLESS=1 cargo test -p meseta-access`).\n\n\
             | list | objects | compared | what |\n|---|---|---|---|\n",
        );
        for action in Action::ALL {
            let compared = match action.objects() {
                Objects::Exact => "by value",
                Objects::Roles => "by value; `a/%` is all below `a`",
                Objects::Paths => "by value, of those below",
                Objects::Whole => "`ANY` or `NONE`",
            };
            page += &format!(
                "| `{}` | `{}` | {compared} | {} |\n",
                action.key(),
                action.object_key(),
                action.meaning().trim().trim_end_matches('.')
            );
        }
        page += "\nPaths that `get_endpoints` may name:\n\n";
        for path in PATHS {
            page += &format!("- `{path}`\n");
        }
        page
    }

    /// `docs/acls.md` as the declarations say; rewritten when `MESETA_BLESS` is set.
    #[test]
    fn the_reference_page_is_what_is_declared() {
        let page = reference();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/acls.md");
        if std::env::var_os("MESETA_BLESS").is_some() {
            std::fs::write(path, &page).unwrap();
        }
        let there = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            there == page,
            "docs/acls.md is stale: run `MESETA_BLESS=1 cargo test -p meseta-access`"
        );
    }
}
