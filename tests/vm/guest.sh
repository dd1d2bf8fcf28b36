# Runs inside the machine: installs as docs/systemd.md says, then the suites. Left in /out: their outputs.
set -u
ip link set lo up 2>/dev/null
failed=0
suite() { # NAME PROGRAM ARGUMENT...
  name=$1; shift
  # On the console too: a run that is cut short leaves nothing else.
  { "$@" 2>&1 || echo "$name failed"; } | tee /out/"$name".txt >/dev/console
  grep -q "^$name failed" /out/"$name".txt && failed=1
  echo "== $name"
  grep -E '^test .*\.\.\. (ok|FAILED|ignored)' /out/"$name".txt
  tail -n 2 /out/"$name".txt
}

# The page's own commands, on a machine that has never seen Meseta.
sed -n '/^```sh$/,/^```$/{/^```/!p}' systemd.md >newcomer.sh
suite newcomer sh -e newcomer.sh
grep -q '^hello from a task' /out/newcomer.txt || { echo "newcomer: no output of the task"; failed=1; }

# From here on with settings of the scenarios; an agent that has been registered does not take other resources.
systemctl stop meseta-agent meseta-master
rm -rf /var/lib/meseta/agent/* /var/lib/private/meseta/master/*
cat >>/etc/meseta/agent.toml <<T
resources = "cpus:8;mem:700;disk:500"
isolation = "cgroups/cpu,cgroups/mem,cgroups/pids,cgroups/blkio,linux/nnp,namespaces/ipc,namespaces/mnt,namespaces/pid,namespaces/uts,posix/rlimits"
cgroups_pids_limit = 64
T
# A watchdog that is not waited for half a minute; an emulated machine answers within ten seconds.
mkdir -p /etc/systemd/system/meseta-agent.service.d
printf '[Service]\nWatchdogSec=10s\n' >/etc/systemd/system/meseta-agent.service.d/vm.conf
systemctl daemon-reload
export MESETA_TEST_MACHINE=1 MESETA_TEST_PATIENCE=180
filter=$(cat filter)
[ -n "$filter" ] || suite isolation ./kernel unified:: --test-threads 2
suite systemd-1 ./systemd-scenarios $filter
suite systemd-2 ./systemd-scenarios $filter
systemctl status meseta-agent meseta-master meseta-tasks.scope --no-pager -l >/out/units.txt 2>&1
systemd-cgls --no-pager >/out/groups.txt 2>&1
exit $failed
