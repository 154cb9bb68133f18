#!/bin/sh
# The service of a campaign's worker: service.sh (restart|pid|stop) FOLDER
folder=$2
# Asked a hundred times in a run, and so without a process more than this one.
pid=
{ read -r pid <"$folder/run/pid"; } 2>/dev/null

alive() {
    stat=
    [ -n "$1" ] && { read -r stat <"/proc/$1/stat"; } 2>/dev/null
    case ${stat##*) } in '' | Z* | X*) return 1 ;; esac
}

halt() {
    if alive "$pid"; then
        kill -9 "$pid"
        while alive "$pid"; do sleep 0.002; done
    fi
}

case $1 in
    pid) if alive "$pid"; then echo "$pid"; else echo 0; fi ;;
    stop) halt ;;
    restart)
        echo restart >>"$folder/run/restarts"
        halt
        setsid bash "$folder/serve_decode.sh" </dev/null >>"$folder/run/own.log" 2>&1 &
        echo $! >"$folder/run/pid.part"
        mv "$folder/run/pid.part" "$folder/run/pid"
        ;;
esac
