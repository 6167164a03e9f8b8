# 1a: loan preempted
j=$(runuser -l ada -c 'hived submit -q --opportunistic --vc vision --gpus 8 --checkpoint-signal USR1 --name ck -- bash job.sh')
# 1b: signal before limit
sleep 3
k=$(runuser -l cleo -c 'hived submit -q --vc nlp --gpus 4 --name taker --time-limit 8s -- sleep 60')
date +%T; for i in 1 2 3 4; do sleep 2; hived ps 2>&1| grep -E "ck|taker"; done
runuser -l cleo -c 'hived explain '$k; 
sleep 4; runuser -l ada -c "hived logs --attempt 1 $j; echo == attempt2; hived logs $j; hived explain $j"; hived cancel $j
l=$(runuser -l ada -c 'hived submit -q --vc vision --gpus 1 --signal USR1@6s --time-limit 10s --name sg -- bash job.sh x')
runuser -l ada -c "hived wait $l; echo wait rc=\$?; hived logs $l; hived explain $l; cat /var/lib/hived/jobs/$l/own/*/ckpt /var/lib/hived/jobs/$l/own/ckpt 2>/dev/null"
