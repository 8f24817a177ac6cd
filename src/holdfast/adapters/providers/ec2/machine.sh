# The rest of what a machine does when it first boots; above this line stands what it is told. It installs the
# agent, and sees to it that agent and watcher run, now and after every boot, and again when they end. An
# installation that fails is tried again: the network may not be there yet.
home=${HOLDFAST_HOME:-/opt/holdfast}
metadata=$HOLDFAST_METADATA # nothing: EC2's own
umask 077
mkdir -p "$home/node/agent" "$home/checkpoints" "$home/bin"
chmod 711 "$home" "$home/node" "$home/bin" # the users of workloads go through, and see nothing
printf '%s' "$token" >"$home/node/token"
printf '%s' "$watcher" >"$home/watch.py"
if [ -n "$ca" ]; then
  printf '%s' "$ca" >"$home/node/ca.pem"
  arguments="$arguments --ca \$home/node/ca.pem"
fi

install_with_pip() {
  for python in python3.14 python3.13 python3.12 python3.11 python3; do
    command -v "$python" >/dev/null && "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' && break
    python=
  done
  [ -n "$python" ] || { echo 'there is no Python of 3.11 or newer on this image' >&2; return 1; }
  "$python" -m venv "$home" && "$home/bin/python" -m pip install --no-input "$requirement"
}

install_agent() (
  umask 022 # what is installed is nobody's secret
  if [ -n "$requirement" ]; then install_with_pip; else (cd "$home" && sh -c "$line"); fi &&
    "$home/bin/python" -m holdfast.agent --help >/dev/null
)

cat >"$home/agent.sh" <<END
home=$home
cd "\$home/node" && exec "\$home/bin/python" -m holdfast.agent $arguments
END
cat >"$home/watch.sh" <<END
exec "$home/bin/python" "$home/watch.py" "$home/node/agent" $metadata
END

unit() { # NAME SCRIPT; replicas go on when the agent ends
  cat >"/etc/systemd/system/$1.service" <<END
[Unit]
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0
[Service]
ExecStart=/bin/sh $2
Restart=always
RestartSec=2
KillMode=process
OOMScoreAdjust=-500
LimitNOFILE=65536
[Install]
WantedBy=multi-user.target
END
  systemctl daemon-reload
  systemctl enable --now "$1.service"
}

keep_running() { # SCRIPT; where there is no systemd: until the next boot
  while :; do
    sh "$1"
    sleep 2
  done
}

wait_s=5
until install_agent; do
  echo "the agent is not installed; again in $wait_s s" >&2
  sleep "$wait_s"
  [ "$wait_s" -ge 60 ] || wait_s=$((wait_s * 2))
done
if [ -d /run/systemd/system ] && [ -z "$HOLDFAST_HOME" ]; then
  unit holdfast-agent "$home/agent.sh"
  unit holdfast-watch "$home/watch.sh"
else
  keep_running "$home/agent.sh" </dev/null >>"$home/agent.log" 2>&1 &
  keep_running "$home/watch.sh" </dev/null >>"$home/watch.log" 2>&1 &
fi
