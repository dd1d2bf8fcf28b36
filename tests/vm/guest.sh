# Runs inside the machine: installs Meseta as docs/systemd.md describes, then runs the suites. Leaves their outputs in /out.
set -u
ip link set lo up 2>/dev/null
grep -qs localhost /etc/hosts || echo '127.0.0.1 localhost' >>/etc/hosts
failed=0
suite() { # NAME PROGRAM ARGUMENT...
  name=$1; shift
  # Writes to the console too: an interrupted run leaves no other output.
  { "$@" 2>&1 || echo "$name failed"; } | tee /out/"$name".txt >/dev/console
  grep -q "^$name failed" /out/"$name".txt && failed=1
  echo "== $name"
  grep -E '^test .*\.\.\. (ok|FAILED|ignored)|WRONG' /out/"$name".txt
  tail -n 2 /out/"$name".txt
}

# The page's own commands, on a machine that has never seen Meseta.
sed -n '/^```sh$/,/^```$/{/^```/!p}' systemd.md >newcomer.sh
suite newcomer sh -e newcomer.sh
grep -q '^hello from a task' /out/newcomer.txt || { echo "newcomer: no output of the task"; failed=1; }

# From here on the settings of the scenarios apply; a registered agent accepts no other resources.
systemctl stop meseta-scheduler meseta-agent meseta-master
rm -rf /var/lib/meseta/agent/* /var/lib/meseta/master/*
cat >>/etc/meseta/agent.toml <<T
resources = "cpus:8;mem:700;disk:500"
isolation = "cgroups/cpu,cgroups/mem,cgroups/pids,cgroups/blkio,linux/nnp,namespaces/ipc,namespaces/mnt,namespaces/pid,namespaces/uts,posix/rlimits"
cgroups_pids_limit = 64
T
# A shorter watchdog, so that no test waits half a minute; an emulated machine answers within ten seconds.
mkdir -p /etc/systemd/system/meseta-agent.service.d
printf '[Service]\nWatchdogSec=10s\n' >/etc/systemd/system/meseta-agent.service.d/vm.conf
systemctl daemon-reload
export MESETA_TEST_MACHINE=1 MESETA_TEST_PATIENCE=180
filter=$(cat filter)
case "$filter" in '' | isolation) suite isolation ./kernel unified:: --test-threads 2 ;; esac
if [ "$filter" = sweeps ]; then
  systemctl stop meseta-agent meseta-master
  kills=$(cat kills) points=$(cat points)
  suite kills ./agent_kills ends "$kills" 7 $((kills * 13))
  for mode in standing changes; do suite $mode ./agent_kills $mode "$kills"; done
  for mode in kill-before kill-after errors; do suite $mode ./agent_faults $mode --points="$points" --together=4; done
fi
# An NFS server that stops, with the modules of this kernel.
case "$filter" in '' | nfs)
  systemctl stop meseta-agent meseta-master
  suite nfs ./scenarios hung_disk::dead_nfs
  systemctl start meseta-master meseta-agent ;;
esac
case "$filter" in safe | isolation | sweeps | nfs) ;; *)
  suite systemd-1 ./systemd-scenarios $filter
  suite systemd-2 ./systemd-scenarios $filter
esac

# The properties of the agent's unit, without those of a lasting service. All processes of the suites
# inherit them.
chmod 755 /payload
below_the_unit() { # USER PROGRAM ARGUMENT...
  user=$1; shift
  mkdir -p /run/systemd/system/suite.service.d
  {
    printf '[Service]\nType=exec\nUser=%s\nWorkingDirectory=/payload\n' "$user"
    printf 'Environment=MESETA_TEST_PATIENCE=%s\nExecStart=/payload/%s\n' "$MESETA_TEST_PATIENCE" "$*"
    printf 'StandardOutput=append:/out/.suite\nStandardError=append:/out/.suite\n'
    sed -n '/^\[Service\]/,/^\[Install\]/p' systemd/meseta-agent.service |
      grep -E '^[A-Z][A-Za-z]*=' |
      grep -vE '^(Type|NotifyAccess|ExecStart|Timeout|Watchdog|Restart|KillMode|State|Runtime|Slice)'
  } >/run/systemd/system/suite.service
  cp systemd/meseta-agent.service.d/sessions.conf.example /run/systemd/system/suite.service.d/sessions.conf
  systemctl daemon-reload
  : >/out/.suite
  systemctl show -p UMask -p NoNewPrivileges -p CapabilityBoundingSet suite.service
  systemctl start --wait suite.service; code=$?
  cat /out/.suite; rm -f /out/.suite
  systemctl reset-failed suite.service 2>/dev/null
  return $code
}
if [ -z "$filter" ] || [ "$filter" = safe ]; then
  # Stops the installed services, which would only take processor time.
  systemctl stop meseta-agent meseta-master
  for user in root nobody; do
    suite node-$user below_the_unit $user node --test-threads 2
    suite safe-$user below_the_unit $user scenarios safe::
    suite hardening-$user below_the_unit $user scenarios hardening::
  done
  systemctl start meseta-master meseta-agent
fi
systemctl status meseta-agent meseta-master meseta-tasks.scope --no-pager -l >/out/units.txt 2>&1
systemd-cgls --no-pager >/out/groups.txt 2>&1
exit $failed
