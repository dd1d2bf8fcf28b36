//! All actions that ACLs can allow or forbid, under their names in Mesos's ACLs.

/// The kind of an action's objects, which decides how an entry is compared with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objects {
    /// Values that must be equal.
    Exact,
    /// Roles: `a/%` matches all roles below `a`.
    Roles,
    /// Paths of endpoints that may be named at all.
    Paths,
    /// All objects or none of them.
    Whole,
}

macro_rules! actions {
    ($(#[doc = $doc:literal] $name:ident $key:literal $object:literal $objects:ident;)*) => {
        /// A kind of action that ACLs allow or deny.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Action { $(#[doc = $doc] $name,)* }

        impl Action {
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Returns the name of its list in an ACL file, for example `run_tasks`.
            #[must_use]
            pub const fn key(self) -> &'static str {
                match self { $(Self::$name => $key,)* }
            }

            /// Returns the key of the objects in an entry of that list, for example `users`.
            #[must_use]
            pub const fn object_key(self) -> &'static str {
                match self { $(Self::$name => $object,)* }
            }

            /// Returns its description in the reference.
            #[cfg(test)]
            const fn meaning(self) -> &'static str {
                match self { $(Self::$name => $doc,)* }
            }

            /// Returns the rule that compares objects.
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
    /// Run tasks and executors as a user.
    RunTask "run_tasks" "users" Exact;
    /// Tear down a framework of this principal.
    TeardownFramework "teardown_frameworks" "framework_principals" Exact;
    /// Reserve resources for a role.
    ReserveResources "reserve_resources" "roles" Roles;
    /// Unreserve resources that this principal reserved.
    UnreserveResources "unreserve_resources" "reserver_principals" Exact;
    /// Create a volume in a role's reservation.
    CreateVolume "create_volumes" "roles" Roles;
    /// Destroy a volume that this principal created.
    DestroyVolume "destroy_volumes" "creator_principals" Exact;
    /// Grow or shrink a role's volume.
    ResizeVolume "resize_volumes" "roles" Roles;
    /// Create a block disk.
    CreateBlockDisk "create_block_disks" "roles" Roles;
    /// Destroy a block disk.
    DestroyBlockDisk "destroy_block_disks" "roles" Roles;
    /// Create a mount disk.
    CreateMountDisk "create_mount_disks" "roles" Roles;
    /// Destroy a mount disk.
    DestroyMountDisk "destroy_mount_disks" "roles" Roles;
    /// Destroy a raw disk.
    DestroyRawDisk "destroy_raw_disks" "roles" Roles;
    /// View a role's quota.
    GetQuota "get_quotas" "roles" Roles;
    /// Set or remove a role's quota.
    UpdateQuota "update_quotas" "roles" Roles;
    /// View a role, its weight and its reservations.
    ViewRole "view_roles" "roles" Roles;
    /// Set a role's weight.
    UpdateWeight "update_weights" "roles" Roles;
    /// Read an endpoint by its path.
    GetEndpoint "get_endpoints" "paths" Paths;
    /// View a framework of this user.
    ViewFramework "view_frameworks" "users" Exact;
    /// View a task that runs as this user.
    ViewTask "view_tasks" "users" Exact;
    /// View an executor that runs as this user.
    ViewExecutor "view_executors" "users" Exact;
    /// Read the sandbox of a task or executor that runs as this user.
    AccessSandbox "access_sandboxes" "users" Exact;
    /// Read a daemon's own log.
    AccessMesosLog "access_mesos_logs" "logs" Whole;
    /// View the flags of a daemon.
    ViewFlags "view_flags" "flags" Whole;
    /// Change a daemon's log level.
    SetLogLevel "set_log_level" "level" Whole;
    /// Join as an agent.
    RegisterAgent "register_agents" "agents" Whole;
    /// Change the maintenance schedule.
    UpdateMaintenanceSchedule "update_maintenance_schedules" "machines" Whole;
    /// View the maintenance schedule.
    GetMaintenanceSchedule "get_maintenance_schedules" "machines" Whole;
    /// Take machines down for maintenance.
    StartMaintenance "start_maintenances" "machines" Whole;
    /// Bring machines up after maintenance.
    StopMaintenance "stop_maintenances" "machines" Whole;
    /// View the draining machines and the machines that are down.
    GetMaintenanceStatus "get_maintenance_statuses" "machines" Whole;
    /// Drain an agent of its tasks.
    DrainAgent "drain_agents" "agents" Whole;
    /// Deactivate an agent: frameworks get no more offers of it.
    DeactivateAgent "deactivate_agents" "agents" Whole;
    /// Reactivate a deactivated or drained agent.
    ReactivateAgent "reactivate_agents" "agents" Whole;
    /// Mark an agent as permanently gone.
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
    /// Write to a container's standard input.
    AttachContainerInput "attach_containers_input" "users" Exact;
    /// Read a container's output.
    AttachContainerOutput "attach_containers_output" "users" Exact;
    /// View a container of this user.
    ViewContainer "view_containers" "users" Exact;
    /// Launch a standalone container, which belongs to no executor.
    LaunchStandaloneContainer "launch_standalone_containers" "users" Whole;
    /// Kill a standalone container.
    KillStandaloneContainer "kill_standalone_containers" "users" Whole;
    /// Wait for a standalone container.
    WaitStandaloneContainer "wait_standalone_containers" "users" Whole;
    /// Remove a standalone container.
    RemoveStandaloneContainer "remove_standalone_containers" "users" Whole;
    /// View a standalone container.
    ViewStandaloneContainer "view_standalone_containers" "users" Whole;
    /// Configure a resource provider.
    ModifyResourceProviderConfig "modify_resource_provider_configs" "resource_providers" Whole;
    /// Mark a resource provider as gone.
    MarkResourceProviderGone "mark_resource_providers_gone" "resource_providers" Whole;
    /// View a resource provider.
    ViewResourceProvider "view_resource_providers" "resource_providers" Whole;
    /// Remove unused images.
    PruneImages "prune_images" "images" Whole;
}

/// Paths that `get_endpoints` can name.
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
            "# ACL actions\n\nThe actions that `--acls` of master and agent can allow or forbid, in Mesos's format, with the \
             key of their objects in an\nentry. [security.md](security.md) has an example. The declarations in the code \
             generate this page\n(`MESETA_BLESS=1 cargo test -p meseta-access`).\n\n\
             | list | objects | comparison | allows to |\n|---|---|---|---|\n",
        );
        for action in Action::ALL {
            let compared = match action.objects() {
                Objects::Exact => "by value",
                Objects::Roles => "by value; `a/%` stands for all roles below `a`",
                Objects::Paths => "by value; one of the paths below",
                Objects::Whole => "`ANY` or `NONE`",
            };
            page += &format!(
                "| `{}` | `{}` | {compared} | {} |\n",
                action.key(),
                action.object_key(),
                action.meaning().trim().trim_end_matches('.')
            );
        }
        page += "\nPaths that `get_endpoints` can name:\n\n";
        for path in PATHS {
            page += &format!("- `{path}`\n");
        }
        page
    }

    /// Compares `docs/acls.md` with the declarations; rewrites it when `MESETA_BLESS` is set.
    #[test]
    fn reference_page_matches_declared_actions() {
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
