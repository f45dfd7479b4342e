	.amdgcn_target "amdgpu9.50-amd-amdhsa-unknown-gfx950"
	.amdhsa_code_object_version 5
	.text
	.globl	mx_gemm
	.p2align	8
	.type	mx_gemm,@function
mx_gemm:
	s_load_dwordx8 s[8:15], s[4:5], 0x0
	s_waitcnt lgkmcnt(0)
	s_branch .LBB0_0
	.p2align	8
.LBB0_0:
	s_load_dwordx4 s[72:75], s[4:5], 0x20
	s_load_dword s56, s[4:5], 0x30
	v_and_b32_e32 v1, 0x3ff, v0
	s_mov_b64 s[80:81], s[10:11]
	v_readfirstlane_b32 s0, v1
	s_bfe_u32 s54, s0, 0x20006
	v_and_b32_e32 v3, 63, v0
	s_lshl_b32 s0, s54, 6
	s_waitcnt lgkmcnt(0)
	s_ashr_i32 s10, s56, 31
	v_or_b32_e32 v51, s0, v3
	s_and_b32 s33, s0, 0x80
	s_and_b32 s55, s0, 64
	s_lshr_b32 s0, s56, 31
	s_lshr_b32 s10, s10, 27
	v_lshrrev_b32_e32 v2, 2, v51
	s_add_i32 s0, s56, s0
	s_add_i32 s10, s56, s10
	s_lshl_b32 s1, s16, 6
	v_and_b32_e32 v4, 56, v2
	v_lshrrev_b32_e32 v12, 5, v51
	v_lshrrev_b32_e32 v46, 3, v51
	v_and_b32_e32 v50, 31, v0
	s_lshl_b32 s57, s17, 6
	s_ashr_i32 s52, s0, 1
	s_ashr_i32 s53, s10, 5
	v_or_b32_e32 v5, 1, v4
	v_or_b32_e32 v6, 2, v4
	v_or_b32_e32 v7, 3, v4
	v_or_b32_e32 v8, 4, v4
	v_or_b32_e32 v9, 5, v4
	v_or_b32_e32 v10, 6, v4
	v_or_b32_e32 v11, 7, v2
	v_or_b32_e32 v13, 8, v12
	v_or_b32_e32 v14, 16, v12
	v_or_b32_e32 v15, 24, v12
	v_or_b32_e32 v48, 32, v46
	v_lshlrev_b32_e32 v2, 2, v50
	s_cmp_gt_i32 s56, 0
	v_or_b32_e32 v16, s1, v4
	v_or_b32_e32 v17, s1, v5
	v_or_b32_e32 v18, s1, v6
	v_or_b32_e32 v19, s1, v7
	v_or_b32_e32 v20, s1, v8
	v_or_b32_e32 v21, s1, v9
	v_or_b32_e32 v22, s1, v10
	v_or_b32_e32 v23, s1, v11
	v_or_b32_e32 v24, s1, v46
	v_or_b32_e32 v25, s1, v48
	v_or_b32_e32 v26, s57, v12
	v_or_b32_e32 v27, s57, v13
	v_or_b32_e32 v28, s57, v14
	v_or_b32_e32 v29, s57, v15
	s_cselect_b64 s[48:49], -1, 0
	v_cmp_gt_i32_e64 s[10:11], s52, v2
	s_mov_b64 s[76:77], s[14:15]
	v_cmp_gt_i32_e64 s[70:71], s74, v16
	v_cmp_gt_i32_e64 s[2:3], s74, v17
	v_cmp_gt_i32_e64 s[4:5], s74, v18
	v_cmp_gt_i32_e64 s[6:7], s74, v19
	v_cmp_gt_i32_e64 s[16:17], s74, v20
	v_cmp_gt_i32_e64 s[18:19], s74, v21
	v_cmp_gt_i32_e64 s[20:21], s74, v22
	v_cmp_gt_i32_e64 s[22:23], s74, v23
	v_cmp_gt_i32_e64 s[24:25], s74, v24
	v_cmp_gt_i32_e64 s[26:27], s74, v25
	s_mul_i32 s88, s52, s1
	v_cmp_gt_i32_e64 s[28:29], s75, v26
	v_cmp_gt_i32_e64 s[30:31], s75, v27
	v_cmp_gt_i32_e64 s[34:35], s75, v28
	v_cmp_gt_i32_e64 s[36:37], s75, v29
	v_mad_u64_u32 v[16:17], s[14:15], v4, s52, v[2:3]
	v_mad_u64_u32 v[18:19], s[14:15], v5, s52, v[2:3]
	v_mad_u64_u32 v[20:21], s[14:15], v6, s52, v[2:3]
	v_mad_u64_u32 v[22:23], s[14:15], v7, s52, v[2:3]
	v_mad_u64_u32 v[24:25], s[14:15], v8, s52, v[2:3]
	v_mad_u64_u32 v[26:27], s[14:15], v9, s52, v[2:3]
	v_mad_u64_u32 v[28:29], s[14:15], v10, s52, v[2:3]
	s_and_b64 s[50:51], s[10:11], s[48:49]
	v_add_u32_e32 v4, s88, v16
	v_bfrev_b32_e32 v19, 1
	s_and_b64 s[14:15], s[50:51], s[70:71]
	v_add_u32_e32 v5, s88, v18
	v_cndmask_b32_e64 v4, v19, v4, s[14:15]
	s_and_b64 s[14:15], s[50:51], s[2:3]
	v_add_u32_e32 v6, s88, v20
	v_cndmask_b32_e64 v5, v19, v5, s[14:15]
	s_and_b64 s[14:15], s[50:51], s[4:5]
	v_add_u32_e32 v7, s88, v22
	v_cndmask_b32_e64 v6, v19, v6, s[14:15]
	s_and_b64 s[14:15], s[50:51], s[6:7]
	v_add_u32_e32 v8, s88, v24
	v_cndmask_b32_e64 v7, v19, v7, s[14:15]
	s_and_b64 s[14:15], s[50:51], s[16:17]
	v_add_u32_e32 v9, s88, v26
	v_cndmask_b32_e64 v8, v19, v8, s[14:15]
	s_and_b64 s[14:15], s[50:51], s[18:19]
	v_or_b32_e32 v38, 32, v12
	v_or_b32_e32 v40, 40, v12
	v_or_b32_e32 v42, 48, v12
	v_or_b32_e32 v44, 56, v12
	v_mul_lo_u32 v11, v11, s52
	v_add_u32_e32 v10, s88, v28
	v_cndmask_b32_e64 v9, v19, v9, s[14:15]
	s_and_b64 s[14:15], s[50:51], s[20:21]
	s_lshl_b32 s90, s54, 8
	v_or_b32_e32 v30, s57, v38
	v_or_b32_e32 v31, s57, v40
	v_or_b32_e32 v32, s57, v42
	v_or_b32_e32 v33, s57, v44
	v_or_b32_e32 v34, s57, v46
	v_or_b32_e32 v35, s57, v48
	v_add3_u32 v17, v11, v2, s88
	s_and_b32 s9, s9, 0xffff
	s_mov_b32 s11, 0x27000
	s_mov_b32 s10, 0x7ffffffe
	v_cndmask_b32_e64 v10, v19, v10, s[14:15]
	s_and_b64 s[14:15], s[50:51], s[22:23]
	s_mov_b32 m0, s90
	v_cmp_gt_i32_e64 s[38:39], s75, v30
	v_cmp_gt_i32_e64 s[40:41], s75, v31
	v_cmp_gt_i32_e64 s[42:43], s75, v32
	v_cmp_gt_i32_e64 s[44:45], s75, v33
	v_cmp_gt_i32_e64 s[94:95], s75, v34
	v_cmp_gt_i32_e32 vcc, s75, v35
	v_cndmask_b32_e64 v11, v19, v17, s[14:15]
	buffer_load_dword v4, s[8:11], 0 offen lds
	s_add_i32 m0, s90, 0x410
	v_mad_u64_u32 v[30:31], s[14:15], v12, s52, v[2:3]
	v_mad_u64_u32 v[32:33], s[14:15], v13, s52, v[2:3]
	v_mad_u64_u32 v[34:35], s[14:15], v14, s52, v[2:3]
	v_mad_u64_u32 v[36:37], s[14:15], v15, s52, v[2:3]
	v_mad_u64_u32 v[38:39], s[14:15], v38, s52, v[2:3]
	v_mad_u64_u32 v[40:41], s[14:15], v40, s52, v[2:3]
	buffer_load_dword v5, s[8:11], 0 offen lds
	v_lshlrev_b32_e32 v5, 2, v51
	s_lshl_b32 s14, s54, 4
	v_xor_b32_e32 v14, s14, v5
	v_xor_b32_e32 v23, 0xc40, v14
	v_sub_u32_e32 v23, v23, v5
	v_sub_u32_e32 v15, v14, v5
	v_lshrrev_b32_e32 v31, 2, v23
	v_xor_b32_e32 v23, 0x1440, v14
	v_ashrrev_i32_e32 v15, 2, v15
	v_sub_u32_e32 v23, v23, v5
	s_mul_i32 s89, s52, s57
	v_lshrrev_b32_e32 v35, 2, v23
	v_add_u32_e32 v23, v15, v3
	v_add_u32_e32 v4, s89, v30
	v_lshlrev_b32_e32 v25, 2, v23
	s_and_b64 s[14:15], s[50:51], s[28:29]
	ds_bpermute_b32 v15, v25, v4
	v_cndmask_b32_e64 v4, 0, 1, s[14:15]
	v_xor_b32_e32 v21, 0x440, v14
	v_xor_b32_e32 v14, 0x1c40, v14
	v_cmp_ne_u32_e64 s[14:15], 0, v4
	v_sub_u32_e32 v21, v21, v5
	v_sub_u32_e32 v14, v14, v5
	v_lshrrev_b64 v[4:5], v23, s[14:15]
	v_and_b32_e32 v4, 1, v4
	v_cmp_eq_u32_e64 s[14:15], 1, v4
	v_lshrrev_b32_e32 v21, 2, v21
	s_add_i32 m0, s90, 0x820
	s_waitcnt lgkmcnt(0)
	v_cndmask_b32_e64 v15, v19, v15, s[14:15]
	s_movk_i32 s14, 0xff00
	v_add3_u32 v27, v21, v3, s14
	buffer_load_dword v6, s[8:11], 0 offen lds
	v_add_u32_e32 v6, s89, v32
	v_lshlrev_b32_e32 v29, 2, v27
	s_and_b64 s[14:15], s[50:51], s[30:31]
	ds_bpermute_b32 v6, v29, v6
	v_cndmask_b32_e64 v4, 0, 1, s[14:15]
	v_cmp_ne_u32_e64 s[14:15], 0, v4
	s_add_i32 m0, s90, 0xc30
	v_add_u32_e32 v12, s89, v38
	v_lshrrev_b64 v[4:5], v27, s[14:15]
	v_and_b32_e32 v4, 1, v4
	v_cmp_eq_u32_e64 s[14:15], 1, v4
	buffer_load_dword v7, s[8:11], 0 offen lds
	v_add_u32_e32 v7, s89, v34
	s_waitcnt lgkmcnt(0)
	v_cndmask_b32_e64 v6, v19, v6, s[14:15]
	s_and_b64 s[14:15], s[50:51], s[34:35]
	ds_bpermute_b32 v7, v25, v7
	v_cndmask_b32_e64 v4, 0, 1, s[14:15]
	v_cmp_ne_u32_e64 s[14:15], 0, v4
	s_add_i32 m0, s90, 0x1040
	ds_bpermute_b32 v12, v25, v12
	v_lshrrev_b64 v[4:5], v23, s[14:15]
	v_and_b32_e32 v4, 1, v4
	v_cmp_eq_u32_e64 s[14:15], 1, v4
	buffer_load_dword v8, s[8:11], 0 offen lds
	v_add_u32_e32 v8, s89, v36
	s_waitcnt lgkmcnt(1)
	v_cndmask_b32_e64 v7, v19, v7, s[14:15]
	s_movk_i32 s14, 0xfd00
	v_add3_u32 v31, v31, v3, s14
	v_lshlrev_b32_e32 v33, 2, v31
	s_and_b64 s[14:15], s[50:51], s[36:37]
	ds_bpermute_b32 v8, v33, v8
	v_cndmask_b32_e64 v4, 0, 1, s[14:15]
	v_cmp_ne_u32_e64 s[14:15], 0, v4
	v_add_u32_e32 v13, s89, v40
	s_add_i32 m0, s90, 0x1450
	v_lshrrev_b64 v[4:5], v31, s[14:15]
	v_and_b32_e32 v4, 1, v4
	v_cmp_eq_u32_e64 s[14:15], 1, v4
	buffer_load_dword v9, s[8:11], 0 offen lds
	s_add_i32 m0, s90, 0x1860
	s_waitcnt lgkmcnt(0)
	v_cndmask_b32_e64 v8, v19, v8, s[14:15]
	s_and_b64 s[14:15], s[50:51], s[38:39]
	v_cndmask_b32_e64 v4, 0, 1, s[14:15]
	v_cmp_ne_u32_e64 s[14:15], 0, v4
	buffer_load_dword v10, s[8:11], 0 offen lds
	s_add_i32 m0, s90, 0x1c70
	v_lshrrev_b64 v[4:5], v23, s[14:15]
	v_and_b32_e32 v4, 1, v4
	v_cmp_eq_u32_e64 s[14:15], 1, v4
	buffer_load_dword v11, s[8:11], 0 offen lds
	s_and_b32 s81, s81, 0xffff
	v_cndmask_b32_e64 v12, v19, v12, s[14:15]
	s_movk_i32 s14, 0xfb00
	v_add3_u32 v35, v35, v3, s14
	s_and_b64 s[14:15], s[50:51], s[40:41]
	v_cndmask_b32_e64 v4, 0, 1, s[14:15]
	v_cmp_ne_u32_e64 s[14:15], 0, v4
	v_lshlrev_b32_e32 v37, 2, v35
	ds_bpermute_b32 v13, v37, v13
	v_lshrrev_b64 v[4:5], v35, s[14:15]
	s_and_b64 s[14:15], s[50:51], s[42:43]
	v_and_b32_e32 v21, 1, v4
	v_cndmask_b32_e64 v4, 0, 1, s[14:15]
	v_cmp_ne_u32_e64 s[14:15], 0, v4
	s_mov_b32 s82, s10
	s_mov_b32 s83, s11
	v_lshrrev_b64 v[4:5], v23, s[14:15]
	v_mad_u64_u32 v[42:43], s[14:15], v42, s52, v[2:3]
	v_and_b32_e32 v5, 1, v4
	v_add_u32_e32 v4, s89, v42
	v_cmp_eq_u32_e64 s[14:15], 1, v21
	ds_bpermute_b32 v21, v25, v4
	s_add_i32 m0, s90, 0x40f0
	v_lshrrev_b32_e32 v14, 2, v14
	buffer_load_dword v15, s[80:83], 0 offen lds
	s_add_i32 m0, s90, 0x44f0
	s_waitcnt lgkmcnt(1)
	v_cndmask_b32_e64 v13, v19, v13, s[14:15]
	s_movk_i32 s14, 0xf900
	buffer_load_dword v6, s[80:83], 0 offen lds
	s_add_i32 m0, s90, 0x48f0
	v_add3_u32 v52, v14, v3, s14
	v_cmp_eq_u32_e64 s[14:15], 1, v5
	buffer_load_dword v7, s[80:83], 0 offen lds
	s_add_i32 m0, s90, 0x4cf0
	s_waitcnt lgkmcnt(0)
	v_cndmask_b32_e64 v3, v19, v21, s[14:15]
	buffer_load_dword v8, s[80:83], 0 offen lds
	s_add_i32 m0, s90, 0x50f0
	v_mad_u64_u32 v[44:45], s[14:15], v44, s52, v[2:3]
	buffer_load_dword v12, s[80:83], 0 offen lds
	s_add_i32 m0, s90, 0x54f0
	v_add_u32_e32 v5, s89, v44
	buffer_load_dword v13, s[80:83], 0 offen lds
	s_add_i32 m0, s90, 0x58f0
	v_lshlrev_b32_e32 v54, 2, v52
	s_and_b64 s[14:15], s[50:51], s[44:45]
	buffer_load_dword v3, s[80:83], 0 offen lds
	ds_bpermute_b32 v3, v54, v5
	v_cndmask_b32_e64 v5, 0, 1, s[14:15]
	v_cmp_ne_u32_e64 s[14:15], 0, v5
	v_and_b32_e32 v4, 7, v0
	s_mul_i32 s91, s53, s1
	v_lshrrev_b64 v[6:7], v52, s[14:15]
	v_and_b32_e32 v5, 1, v6
	v_cmp_eq_u32_e64 s[14:15], 1, v5
	v_mad_u64_u32 v[46:47], s[50:51], v46, s53, v[4:5]
	v_mad_u64_u32 v[48:49], s[50:51], v48, s53, v[4:5]
	s_waitcnt lgkmcnt(0)
	v_cndmask_b32_e64 v3, v19, v3, s[14:15]
	v_cmp_gt_i32_e64 s[14:15], s53, v4
	s_add_i32 m0, s90, 0x5cf0
	s_and_b64 s[50:51], s[14:15], s[48:49]
	buffer_load_dword v3, s[80:83], 0 offen lds
	v_add_u32_e32 v3, s91, v46
	s_and_b64 s[48:49], s[50:51], s[24:25]
	s_mul_i32 s92, s53, s57
	v_add_u32_e32 v5, s91, v48
	s_and_b32 s13, s13, 0xffff
	s_mov_b32 s14, s10
	s_mov_b32 s15, s11
	v_cndmask_b32_e64 v3, v19, v3, s[48:49]
	s_and_b64 s[48:49], s[50:51], s[26:27]
	v_cndmask_b32_e64 v5, v19, v5, s[48:49]
	buffer_load_ubyte v6, v3, s[12:15], 0 offen
	buffer_load_ubyte v7, v5, s[12:15], 0 offen
	v_add_u32_e32 v3, s92, v46
	s_and_b64 s[14:15], s[50:51], s[94:95]
	v_add_u32_e32 v5, s92, v48
	v_cndmask_b32_e64 v3, v19, v3, s[14:15]
	s_and_b64 s[14:15], s[50:51], vcc
	s_and_b32 s77, s77, 0xffff
	s_mov_b32 s78, s10
	s_mov_b32 s79, s11
	v_cndmask_b32_e64 v5, v19, v5, s[14:15]
	buffer_load_ubyte v3, v3, s[76:79], 0 offen
	s_nop 0
	buffer_load_ubyte v5, v5, s[76:79], 0 offen
	v_and_b32_e32 v21, 32, v0
	s_add_i32 s93, s56, 0xffffff00
	s_mov_b32 s99, 0
	v_add_u32_e32 v0, 0, v51
	s_cmp_lt_i32 s93, 1
	v_lshlrev_b32_e32 v39, 10, v4
	v_lshlrev_b32_e32 v45, 4, v1
	v_lshrrev_b32_e32 v41, 1, v21
	v_lshlrev_b32_e32 v43, 4, v4
	v_lshlrev_b32_e32 v49, 7, v50
	v_lshlrev_b32_e32 v47, 3, v1
	v_lshrrev_b32_e32 v53, 5, v21
	v_writelane_b32 v105, s1, 0
	s_waitcnt vmcnt(3)
	ds_write_b8 v0, v6 offset:33008
	s_waitcnt vmcnt(2)
	ds_write_b8 v0, v7 offset:33264
	s_waitcnt vmcnt(1)
	ds_write_b8 v0, v3 offset:34032
	s_waitcnt vmcnt(0)
	ds_write_b8 v0, v5 offset:34288
	s_cbranch_scc1 .LBB0_4
	s_movk_i32 s14, 0x70
	v_writelane_b32 v105, s57, 1
	v_lshl_or_b32 v0, s55, 6, v49
	v_bitop3_b32 v1, v47, v41, s14 bitop3:0x6c
	s_movk_i32 s14, 0x60
	v_writelane_b32 v105, s56, 2
	v_or_b32_e32 v58, v0, v1
	v_bitop3_b32 v59, v0, 32, v1 bitop3:0x36
	v_bitop3_b32 v60, v0, 64, v1 bitop3:0x36
	v_bitop3_b32 v61, v0, s14, v1 bitop3:0x36
	v_mov_b32_e32 v0, 0
	v_sub_u32_e32 v55, s52, v2
	v_sub_u32_e32 v56, s53, v4
	v_and_b32_e32 v57, 0x180, v45
	s_lshl_b32 s1, s33, 2
	v_writelane_b32 v105, s33, 3
	s_lshl_b32 s84, s33, 1
	v_lshl_or_b32 v62, v50, 3, v53
	s_movk_i32 s48, 0x40f0
	s_mov_b32 s49, 0x80f0
	s_mov_b32 s50, 0x84f0
	s_lshl_b32 s96, s55, 2
	s_mov_b32 s97, 0xc0c0004
	s_mov_b32 s85, 0
	v_mov_b32_e32 v1, v0
	v_mov_b32_e32 v2, v0
	v_mov_b32_e32 v3, v0
	v_mov_b32_e32 v4, v0
	v_mov_b32_e32 v5, v0
	v_mov_b32_e32 v6, v0
	v_mov_b32_e32 v7, v0
	v_mov_b32_e32 v8, v0
	v_mov_b32_e32 v9, v0
	v_mov_b32_e32 v10, v0
	v_mov_b32_e32 v11, v0
	v_mov_b32_e32 v12, v0
	v_mov_b32_e32 v13, v0
	v_mov_b32_e32 v14, v0
	v_mov_b32_e32 v15, v0
	s_mov_b32 s98, 0
	v_writelane_b32 v105, s55, 4
.LBB0_2:
	s_add_i32 s51, s85, 1
	s_cmp_lt_i32 s51, 2
	s_cselect_b32 s85, s51, 0
	s_addk_i32 s98, 0x100
	s_ashr_i32 s51, s98, 1
	v_add_u32_e32 v65, s48, v58
	v_add_u32_e32 v82, s48, v59
	v_add_u32_e32 v64, s48, v60
	v_add_u32_e32 v63, s48, v61
	s_add_i32 s48, s1, s99
	s_add_i32 s50, s96, s50
	v_cmp_lt_i32_e64 s[54:55], s51, v55
	v_add3_u32 v66, s48, v39, v57
	v_add_u32_e32 v84, s50, v62
	s_add_i32 s52, s51, s88
	s_add_i32 s68, s51, s89
	v_add_u32_e32 v67, s51, v17
	s_and_b64 s[50:51], s[28:29], s[54:55]
	v_add3_u32 v85, v66, v41, v43
	v_cndmask_b32_e64 v66, 0, 1, s[50:51]
	s_and_b64 s[50:51], s[30:31], s[54:55]
	v_cndmask_b32_e64 v68, 0, 1, s[50:51]
	s_and_b64 s[50:51], s[34:35], s[54:55]
	v_cndmask_b32_e64 v69, 0, 1, s[50:51]
	s_and_b64 s[50:51], s[36:37], s[54:55]
	v_cndmask_b32_e64 v70, 0, 1, s[50:51]
	s_and_b64 s[50:51], s[38:39], s[54:55]
	s_lshl_b32 s86, s85, 13
	v_cndmask_b32_e64 v72, 0, 1, s[50:51]
	s_and_b64 s[50:51], s[40:41], s[54:55]
	s_lshr_b32 s53, s86, 6
	v_cndmask_b32_e64 v73, 0, 1, s[50:51]
	s_and_b64 s[50:51], s[42:43], s[54:55]
	s_add_i32 s99, s86, s53
	v_cndmask_b32_e64 v74, 0, 1, s[50:51]
	s_and_b64 s[50:51], s[44:45], s[54:55]
	v_add_u32_e32 v71, s52, v16
	v_cndmask_b32_e64 v75, 0, 1, s[50:51]
	s_and_b64 s[56:57], s[2:3], s[54:55]
	s_and_b64 s[58:59], s[4:5], s[54:55]
	s_and_b64 s[60:61], s[6:7], s[54:55]
	s_and_b64 s[62:63], s[16:17], s[54:55]
	s_and_b64 s[64:65], s[18:19], s[54:55]
	s_and_b64 s[66:67], s[20:21], s[54:55]
	s_and_b64 s[50:51], s[22:23], s[54:55]
	s_and_b64 s[54:55], s[70:71], s[54:55]
	s_add_i32 s0, s99, s90
	v_add_u32_e32 v76, s52, v18
	v_cndmask_b32_e64 v97, v19, v71, s[54:55]
	s_mov_b32 m0, s0
	s_waitcnt lgkmcnt(0)
	s_barrier
	v_add_u32_e32 v77, s52, v20
	v_cndmask_b32_e64 v98, v19, v76, s[56:57]
	buffer_load_dword v97, s[8:11], 0 offen lds
	s_add_i32 m0, s0, 0x410
	v_add_u32_e32 v78, s52, v22
	v_cndmask_b32_e64 v87, v19, v67, s[50:51]
	v_add_u32_e32 v67, s68, v30
	v_cndmask_b32_e64 v99, v19, v77, s[58:59]
	buffer_load_dword v98, s[8:11], 0 offen lds
	s_add_i32 m0, s0, 0x820
	s_ashr_i32 s87, s98, 5
	v_add_u32_e32 v79, s52, v24
	v_add_u32_e32 v90, s68, v32
	v_cndmask_b32_e64 v100, v19, v78, s[60:61]
	ds_bpermute_b32 v104, v25, v67
	buffer_load_dword v99, s[8:11], 0 offen lds
	s_add_i32 m0, s0, 0xc30
	s_add_i32 s49, s84, s49
	s_add_i32 s69, s87, s91
	v_add_u32_e32 v80, s52, v26
	v_add_u32_e32 v91, s68, v34
	v_cmp_ne_u32_e64 s[54:55], 0, v66
	v_cndmask_b32_e64 v101, v19, v79, s[62:63]
	ds_bpermute_b32 v90, v29, v90
	buffer_load_dword v100, s[8:11], 0 offen lds
	s_add_i32 m0, s0, 0x1040
	v_add_u32_e32 v83, s49, v62
	v_cmp_lt_i32_e64 s[48:49], s87, v56
	v_add_u32_e32 v81, s52, v28
	v_add_u32_e32 v86, s69, v46
	v_add_u32_e32 v88, s69, v48
	v_add_u32_e32 v92, s68, v36
	v_add_u32_e32 v93, s68, v38
	v_add_u32_e32 v94, s68, v40
	v_add_u32_e32 v95, s68, v42
	v_add_u32_e32 v96, s68, v44
	v_cmp_ne_u32_e64 s[68:69], 0, v68
	v_cndmask_b32_e64 v102, v19, v80, s[64:65]
	ds_bpermute_b32 v91, v25, v91
	v_lshrrev_b64 v[66:67], v23, s[54:55]
	buffer_load_dword v101, s[8:11], 0 offen lds
	s_add_i32 m0, s0, 0x1450
	s_and_b64 s[50:51], s[26:27], s[48:49]
	s_mov_b64 s[46:47], s[44:45]
	s_mov_b64 s[44:45], s[42:43]
	s_mov_b64 s[42:43], s[40:41]
	s_mov_b64 s[40:41], s[38:39]
	s_mov_b64 s[38:39], s[36:37]
	s_mov_b64 s[36:37], s[34:35]
	s_mov_b64 s[34:35], s[30:31]
	s_mov_b64 s[30:31], s[28:29]
	s_mov_b64 s[28:29], s[26:27]
	s_mov_b64 s[26:27], s[24:25]
	s_mov_b64 s[24:25], s[22:23]
	s_mov_b64 s[22:23], s[20:21]
	s_mov_b64 s[20:21], s[18:19]
	s_mov_b64 s[18:19], s[16:17]
	s_mov_b64 s[16:17], s[6:7]
	s_mov_b64 s[6:7], s[4:5]
	s_mov_b64 s[4:5], s[2:3]
	s_mov_b64 s[2:3], s[70:71]
	v_cmp_ne_u32_e64 s[70:71], 0, v69
	v_cndmask_b32_e64 v103, v19, v81, s[66:67]
	ds_bpermute_b32 v92, v33, v92
	v_lshrrev_b64 v[68:69], v27, s[68:69]
	v_and_b32_e32 v66, 1, v66
	buffer_load_dword v102, s[8:11], 0 offen lds
	s_add_i32 m0, s0, 0x1860
	s_add_i32 s33, s86, s90
	v_cmp_ne_u32_e64 s[56:57], 0, v70
	ds_bpermute_b32 v93, v25, v93
	v_lshrrev_b64 v[70:71], v23, s[70:71]
	v_and_b32_e32 v67, 1, v68
	v_cmp_eq_u32_e64 s[54:55], 1, v66
	buffer_load_dword v103, s[8:11], 0 offen lds
	s_add_i32 m0, s0, 0x1c70
	s_mov_b32 s82, s10
	s_mov_b32 s83, s11
	v_cmp_ne_u32_e64 s[58:59], 0, v72
	v_cmp_ne_u32_e64 s[60:61], 0, v73
	ds_bpermute_b32 v94, v37, v94
	v_lshrrev_b64 v[72:73], v31, s[56:57]
	v_and_b32_e32 v68, 1, v70
	v_cmp_eq_u32_e64 s[56:57], 1, v67
	s_waitcnt lgkmcnt(5)
	v_cndmask_b32_e64 v66, v19, v104, s[54:55]
	buffer_load_dword v87, s[8:11], 0 offen lds
	s_add_i32 m0, s33, 0x40f0
	v_cmp_ne_u32_e64 s[62:63], 0, v74
	v_cmp_ne_u32_e64 s[64:65], 0, v75
	ds_bpermute_b32 v95, v25, v95
	v_lshrrev_b64 v[74:75], v23, s[58:59]
	v_and_b32_e32 v69, 1, v72
	v_cmp_eq_u32_e64 s[58:59], 1, v68
	s_waitcnt lgkmcnt(5)
	v_cndmask_b32_e64 v67, v19, v90, s[56:57]
	buffer_load_dword v66, s[80:83], 0 offen lds
	s_add_i32 m0, s33, 0x44f0
	ds_bpermute_b32 v96, v54, v96
	v_lshrrev_b64 v[76:77], v35, s[60:61]
	v_and_b32_e32 v70, 1, v74
	v_cmp_eq_u32_e64 s[60:61], 1, v69
	s_waitcnt lgkmcnt(5)
	v_cndmask_b32_e64 v68, v19, v91, s[58:59]
	buffer_load_dword v67, s[80:83], 0 offen lds
	s_add_i32 m0, s33, 0x48f0
	v_lshrrev_b64 v[78:79], v23, s[62:63]
	v_and_b32_e32 v71, 1, v76
	v_cmp_eq_u32_e64 s[62:63], 1, v70
	s_waitcnt lgkmcnt(4)
	v_cndmask_b32_e64 v69, v19, v92, s[60:61]
	buffer_load_dword v68, s[80:83], 0 offen lds
	s_add_i32 m0, s33, 0x4cf0
	v_lshrrev_b64 v[80:81], v52, s[64:65]
	v_and_b32_e32 v72, 1, v78
	v_cmp_eq_u32_e64 s[64:65], 1, v71
	s_waitcnt lgkmcnt(3)
	v_cndmask_b32_e64 v70, v19, v93, s[62:63]
	buffer_load_dword v69, s[80:83], 0 offen lds
	s_add_i32 m0, s33, 0x50f0
	v_and_b32_e32 v73, 1, v80
	v_cmp_eq_u32_e64 s[66:67], 1, v72
	s_waitcnt lgkmcnt(2)
	v_cndmask_b32_e64 v71, v19, v94, s[64:65]
	buffer_load_dword v70, s[80:83], 0 offen lds
	s_add_i32 m0, s33, 0x54f0
	v_cmp_eq_u32_e64 s[68:69], 1, v73
	s_waitcnt lgkmcnt(1)
	v_cndmask_b32_e64 v72, v19, v95, s[66:67]
	buffer_load_dword v71, s[80:83], 0 offen lds
	s_add_i32 m0, s33, 0x58f0
	s_waitcnt lgkmcnt(0)
	v_cndmask_b32_e64 v73, v19, v96, s[68:69]
	buffer_load_dword v72, s[80:83], 0 offen lds
	s_add_i32 m0, s33, 0x5cf0
	ds_read_b128 v[74:77], v85
	ds_read_b128 v[78:81], v85 offset:32
	ds_read_b128 v[90:93], v85 offset:64
	ds_read_b128 v[94:97], v85 offset:96
	buffer_load_dword v73, s[80:83], 0 offen lds
	ds_read_b128 v[98:101], v65
	ds_read_u8 v65, v83
	ds_read_u8 v66, v83 offset:2
	ds_read_u8 v67, v83 offset:4
	ds_read_u8 v68, v83 offset:6
	ds_read_u8 v69, v84
	ds_read_u8 v70, v84 offset:2
	ds_read_u8 v71, v84 offset:4
	ds_read_u8 v72, v84 offset:6
	ds_read_b128 v[82:85], v82
	s_mov_b64 s[70:71], s[2:3]
	s_mov_b64 s[2:3], s[4:5]
	s_mov_b64 s[4:5], s[6:7]
	s_mov_b64 s[6:7], s[16:17]
	s_mov_b64 s[16:17], s[18:19]
	s_mov_b64 s[18:19], s[20:21]
	s_mov_b64 s[20:21], s[22:23]
	s_mov_b64 s[22:23], s[24:25]
	s_mov_b64 s[24:25], s[26:27]
	s_add_i32 s87, s87, s92
	s_and_b64 s[52:53], s[94:95], s[48:49]
	s_waitcnt lgkmcnt(7)
	v_perm_b32 v65, v65, v66, s97
	s_waitcnt lgkmcnt(5)
	v_perm_b32 v66, v67, v68, s97
	s_waitcnt lgkmcnt(3)
	v_perm_b32 v67, v69, v70, s97
	s_waitcnt lgkmcnt(1)
	v_perm_b32 v68, v71, v72, s97
	s_and_b64 s[54:55], vcc, s[48:49]
	s_and_b64 s[48:49], s[24:25], s[48:49]
	s_mov_b32 s14, s10
	s_mov_b32 s15, s11
	v_add_u32_e32 v89, s87, v46
	v_lshl_or_b32 v65, v66, 16, v65
	v_lshl_or_b32 v66, v68, 16, v67
	v_cndmask_b32_e64 v68, v19, v86, s[48:49]
	s_mov_b32 s78, s10
	s_mov_b32 s79, s11
	v_mfma_scale_f32_32x32x64_f8f6f4 v[0:15], v[98:101], v[74:77], v[0:15], v66, v65 op_sel_hi:[0,0,0] cbsz:4 blgp:4
	v_cndmask_b32_e64 v69, v19, v88, s[50:51]
	v_cndmask_b32_e64 v70, v19, v89, s[52:53]
	ds_read_b128 v[72:75], v64
	buffer_load_ubyte v64, v68, s[12:15], 0 offen
	buffer_load_ubyte v76, v69, s[12:15], 0 offen
	buffer_load_ubyte v77, v70, s[76:79], 0 offen
	v_add_u32_e32 v67, s87, v48
	v_cndmask_b32_e64 v67, v19, v67, s[54:55]
	buffer_load_ubyte v67, v67, s[76:79], 0 offen
	s_waitcnt lgkmcnt(1)
	v_mfma_scale_f32_32x32x64_f8f6f4 v[0:15], v[82:85], v[78:81], v[0:15], v66, v65 op_sel:[1,1,0] op_sel_hi:[0,0,0] cbsz:4 blgp:4
	ds_read_b128 v[68:71], v63
	s_lshl_b32 s0, s85, 9
	s_add_i32 s48, s86, 0x40f0
	s_add_i32 s49, s0, 0x80f0
	s_add_i32 s50, s0, 0x84f0
	s_mov_b64 s[26:27], s[28:29]
	s_mov_b64 s[28:29], s[30:31]
	s_waitcnt lgkmcnt(1)
	v_mfma_scale_f32_32x32x64_f8f6f4 v[0:15], v[72:75], v[90:93], v[0:15], v66, v65 op_sel_hi:[1,1,0] cbsz:4 blgp:4
	s_mov_b64 s[30:31], s[34:35]
	s_mov_b64 s[34:35], s[36:37]
	s_mov_b64 s[36:37], s[38:39]
	s_mov_b64 s[38:39], s[40:41]
	s_mov_b64 s[40:41], s[42:43]
	s_mov_b64 s[42:43], s[44:45]
	s_mov_b64 s[44:45], s[46:47]
	s_waitcnt lgkmcnt(0)
	v_mfma_scale_f32_32x32x64_f8f6f4 v[0:15], v[68:71], v[94:97], v[0:15], v66, v65 op_sel:[1,1,0] op_sel_hi:[1,1,0] cbsz:4 blgp:4
	v_add_u32_e32 v63, s0, v51
	s_cmp_lt_i32 s98, s93
	s_barrier
	s_waitcnt vmcnt(3)
	ds_write_b8 v63, v64 offset:33008
	s_waitcnt vmcnt(2)
	ds_write_b8 v63, v76 offset:33264
	s_waitcnt vmcnt(1)
	ds_write_b8 v63, v77 offset:34032
	s_waitcnt vmcnt(0)
	ds_write_b8 v63, v67 offset:34288
	s_cbranch_scc1 .LBB0_2
	v_readlane_b32 s33, v105, 3
	v_readlane_b32 s55, v105, 4
	v_readlane_b32 s56, v105, 2
	v_readlane_b32 s57, v105, 1
	s_branch .LBB0_5
.LBB0_4:
	v_mov_b32_e32 v15, 0
	s_movk_i32 s48, 0x40f0
	s_mov_b32 s49, 0x80f0
	s_mov_b32 s50, 0x84f0
	v_mov_b32_e32 v14, v15
	v_mov_b32_e32 v13, v15
	v_mov_b32_e32 v12, v15
	v_mov_b32_e32 v11, v15
	v_mov_b32_e32 v10, v15
	v_mov_b32_e32 v9, v15
	v_mov_b32_e32 v8, v15
	v_mov_b32_e32 v7, v15
	v_mov_b32_e32 v6, v15
	v_mov_b32_e32 v5, v15
	v_mov_b32_e32 v4, v15
	v_mov_b32_e32 v3, v15
	v_mov_b32_e32 v2, v15
	v_mov_b32_e32 v1, v15
	v_mov_b32_e32 v0, v15
.LBB0_5:
	s_add_i32 s0, s56, 0xff
	s_cmpk_lt_i32 s0, 0x100
	s_waitcnt lgkmcnt(0)
	s_barrier
	s_cbranch_scc1 .LBB0_7
	v_lshl_or_b32 v16, v50, 3, v53
	s_lshl2_add_u32 s0, s55, s50
	v_add_u32_e32 v17, s0, v16
	s_lshl1_add_u32 s0, s33, s49
	v_add_u32_e32 v16, s0, v16
	s_movk_i32 s0, 0x70
	v_lshl_or_b32 v18, s55, 6, v49
	v_bitop3_b32 v19, v47, v41, s0 bitop3:0x6c
	v_or_b32_e32 v20, v18, v19
	v_add_u32_e32 v23, s48, v20
	ds_read_b128 v[30:33], v23
	v_and_b32_e32 v23, 0x180, v45
	s_lshl2_add_u32 s0, s33, s99
	v_add3_u32 v23, s0, v39, v23
	v_add3_u32 v23, v23, v41, v43
	ds_read_b128 v[34:37], v23
	ds_read_b128 v[38:41], v23 offset:32
	ds_read_u8 v24, v16
	ds_read_u8 v25, v16 offset:2
	ds_read_u8 v26, v16 offset:4
	ds_read_u8 v16, v16 offset:6
	ds_read_u8 v27, v17
	ds_read_u8 v28, v17 offset:2
	ds_read_u8 v29, v17 offset:4
	ds_read_u8 v17, v17 offset:6
	s_mov_b32 s0, 0xc0c0004
	s_waitcnt lgkmcnt(6)
	v_perm_b32 v24, v24, v25, s0
	v_xad_u32 v22, v20, 32, s48
	s_waitcnt lgkmcnt(4)
	v_perm_b32 v16, v26, v16, s0
	v_lshl_or_b32 v16, v16, 16, v24
	s_waitcnt lgkmcnt(2)
	v_perm_b32 v24, v27, v28, s0
	s_waitcnt lgkmcnt(0)
	v_perm_b32 v17, v29, v17, s0
	v_lshl_or_b32 v17, v17, 16, v24
	ds_read_b128 v[24:27], v22
	v_xad_u32 v20, v20, 64, s48
	v_mfma_scale_f32_32x32x64_f8f6f4 v[0:15], v[30:33], v[34:37], v[0:15], v17, v16 op_sel_hi:[0,0,0] cbsz:4 blgp:4
	s_movk_i32 s0, 0x60
	v_bitop3_b32 v18, v18, s0, v19 bitop3:0x36
	v_add_u32_e32 v18, s48, v18
	s_waitcnt lgkmcnt(0)
	v_mfma_scale_f32_32x32x64_f8f6f4 v[0:15], v[24:27], v[38:41], v[0:15], v17, v16 op_sel:[1,1,0] op_sel_hi:[0,0,0] cbsz:4 blgp:4
	ds_read_b128 v[24:27], v20
	ds_read_b128 v[28:31], v23 offset:64
	s_waitcnt lgkmcnt(0)
	v_mfma_scale_f32_32x32x64_f8f6f4 v[0:15], v[24:27], v[28:31], v[0:15], v17, v16 op_sel_hi:[1,1,0] cbsz:4 blgp:4
	ds_read_b128 v[24:27], v18
	ds_read_b128 v[28:31], v23 offset:96
	s_waitcnt lgkmcnt(0)
	v_mfma_scale_f32_32x32x64_f8f6f4 v[0:15], v[24:27], v[28:31], v[0:15], v17, v16 op_sel:[1,1,0] op_sel_hi:[1,1,0] cbsz:4 blgp:4
.LBB0_7:
	v_lshrrev_b32_e32 v16, 2, v21
	s_lshr_b32 s0, s55, 1
	v_or_b32_e32 v16, s0, v16
	s_lshr_b32 s0, s33, 2
	v_or_b32_e32 v48, s0, v50
	v_readlane_b32 s33, v105, 0
	v_or_b32_e32 v19, 22, v16
	v_or_b32_e32 v47, s57, v16
	v_or_b32_e32 v49, s33, v48
	s_mul_i32 s33, s75, s33
	s_nop 1
	v_cvt_pk_bf16_f32 v0, v0, v1
	v_cvt_pk_bf16_f32 v1, v2, v3
	v_cvt_pk_bf16_f32 v2, v4, v5
	v_cvt_pk_bf16_f32 v4, v8, v9
	v_mul_lo_u32 v8, v48, s75
	s_add_i32 s33, s33, s57
	v_or_b32_e32 v17, 23, v16
	v_or_b32_e32 v20, s57, v19
	v_or_b32_e32 v21, 21, v16
	v_or_b32_e32 v23, 20, v16
	v_or_b32_e32 v25, 19, v16
	v_or_b32_e32 v27, 18, v16
	v_or_b32_e32 v29, 17, v16
	v_or_b32_e32 v31, 16, v16
	v_or_b32_e32 v33, 7, v16
	v_or_b32_e32 v35, 6, v16
	v_or_b32_e32 v37, 5, v16
	v_or_b32_e32 v39, 4, v16
	v_or_b32_e32 v41, 3, v16
	v_or_b32_e32 v43, 2, v16
	v_or_b32_e32 v45, 1, v16
	v_cmp_gt_i32_e32 vcc, s74, v49
	v_cmp_gt_i32_e64 s[14:15], s75, v47
	v_add_u32_e32 v8, s33, v8
	v_or_b32_e32 v18, s57, v17
	v_or_b32_e32 v22, s57, v21
	v_or_b32_e32 v24, s57, v23
	v_or_b32_e32 v26, s57, v25
	v_or_b32_e32 v28, s57, v27
	v_or_b32_e32 v30, s57, v29
	v_or_b32_e32 v32, s57, v31
	v_or_b32_e32 v34, s57, v33
	v_or_b32_e32 v36, s57, v35
	v_or_b32_e32 v38, s57, v37
	v_or_b32_e32 v40, s57, v39
	v_or_b32_e32 v42, s57, v41
	v_or_b32_e32 v44, s57, v43
	v_or_b32_e32 v46, s57, v45
	v_cmp_gt_i32_e64 s[2:3], s75, v20
	v_add_lshl_u32 v16, v8, v16, 1
	v_bfrev_b32_e32 v20, 1
	s_and_b64 s[14:15], vcc, s[14:15]
	v_cmp_gt_i32_e64 s[16:17], s75, v46
	v_cmp_gt_i32_e64 s[18:19], s75, v44
	v_cmp_gt_i32_e64 s[20:21], s75, v42
	v_cmp_gt_i32_e64 s[22:23], s75, v40
	v_cmp_gt_i32_e64 s[24:25], s75, v38
	v_cmp_gt_i32_e64 s[26:27], s75, v36
	v_cmp_gt_i32_e64 s[28:29], s75, v34
	v_cmp_gt_i32_e64 s[30:31], s75, v32
	v_cmp_gt_i32_e64 s[12:13], s75, v30
	v_cmp_gt_i32_e64 s[10:11], s75, v28
	v_cmp_gt_i32_e64 s[8:9], s75, v26
	v_cmp_gt_i32_e64 s[6:7], s75, v24
	v_cmp_gt_i32_e64 s[4:5], s75, v22
	v_cmp_gt_i32_e64 s[0:1], s75, v18
	v_permlane32_swap_b32_e32 v0, v2
	s_and_b32 s73, s73, 0xffff
	s_mov_b32 s75, 0x27000
	s_mov_b32 s74, 0x7ffffffe
	v_cndmask_b32_e64 v16, v20, v16, s[14:15]
	v_lshrrev_b32_e32 v9, 16, v0
	buffer_store_short v0, v16, s[72:75], 0 offen
	v_add_lshl_u32 v0, v8, v45, 1
	s_and_b64 s[14:15], vcc, s[16:17]
	v_cndmask_b32_e64 v0, v20, v0, s[14:15]
	v_cvt_pk_bf16_f32 v3, v6, v7
	buffer_store_short v9, v0, s[72:75], 0 offen
	v_add_lshl_u32 v0, v8, v43, 1
	s_and_b64 s[14:15], vcc, s[18:19]
	v_permlane32_swap_b32_e32 v1, v3
	v_cndmask_b32_e64 v0, v20, v0, s[14:15]
	buffer_store_short v1, v0, s[72:75], 0 offen
	v_add_lshl_u32 v0, v8, v41, 1
	s_and_b64 s[14:15], vcc, s[20:21]
	v_cvt_pk_bf16_f32 v5, v10, v11
	v_lshrrev_b32_e32 v10, 16, v1
	v_cndmask_b32_e64 v0, v20, v0, s[14:15]
	buffer_store_short v10, v0, s[72:75], 0 offen
	v_add_lshl_u32 v0, v8, v39, 1
	s_and_b64 s[14:15], vcc, s[22:23]
	v_cndmask_b32_e64 v0, v20, v0, s[14:15]
	buffer_store_short v2, v0, s[72:75], 0 offen
	v_add_lshl_u32 v0, v8, v37, 1
	s_and_b64 s[14:15], vcc, s[24:25]
	v_lshrrev_b32_e32 v11, 16, v2
	v_cndmask_b32_e64 v0, v20, v0, s[14:15]
	buffer_store_short v11, v0, s[72:75], 0 offen
	v_add_lshl_u32 v0, v8, v35, 1
	s_and_b64 s[14:15], vcc, s[26:27]
	v_cndmask_b32_e64 v0, v20, v0, s[14:15]
	buffer_store_short v3, v0, s[72:75], 0 offen
	v_add_lshl_u32 v0, v8, v33, 1
	s_and_b64 s[14:15], vcc, s[28:29]
	v_cvt_pk_bf16_f32 v6, v12, v13
	v_lshrrev_b32_e32 v12, 16, v3
	v_cndmask_b32_e64 v0, v20, v0, s[14:15]
	buffer_store_short v12, v0, s[72:75], 0 offen
	v_add_lshl_u32 v0, v8, v31, 1
	s_and_b64 s[14:15], vcc, s[30:31]
	v_permlane32_swap_b32_e32 v4, v6
	v_cndmask_b32_e64 v0, v20, v0, s[14:15]
	buffer_store_short v4, v0, s[72:75], 0 offen
	v_add_lshl_u32 v0, v8, v29, 1
	s_and_b64 s[12:13], vcc, s[12:13]
	v_lshrrev_b32_e32 v13, 16, v4
	v_cndmask_b32_e64 v0, v20, v0, s[12:13]
	v_cvt_pk_bf16_f32 v7, v14, v15
	buffer_store_short v13, v0, s[72:75], 0 offen
	v_add_lshl_u32 v0, v8, v27, 1
	s_and_b64 s[10:11], vcc, s[10:11]
	v_permlane32_swap_b32_e32 v5, v7
	v_cndmask_b32_e64 v0, v20, v0, s[10:11]
	buffer_store_short v5, v0, s[72:75], 0 offen
	v_add_lshl_u32 v0, v8, v25, 1
	s_and_b64 s[8:9], vcc, s[8:9]
	v_lshrrev_b32_e32 v14, 16, v5
	v_cndmask_b32_e64 v0, v20, v0, s[8:9]
	buffer_store_short v14, v0, s[72:75], 0 offen
	v_add_lshl_u32 v0, v8, v23, 1
	s_and_b64 s[6:7], vcc, s[6:7]
	v_cndmask_b32_e64 v0, v20, v0, s[6:7]
	buffer_store_short v6, v0, s[72:75], 0 offen
	v_add_lshl_u32 v0, v8, v21, 1
	s_and_b64 s[4:5], vcc, s[4:5]
	v_lshrrev_b32_e32 v15, 16, v6
	v_cndmask_b32_e64 v0, v20, v0, s[4:5]
	buffer_store_short v15, v0, s[72:75], 0 offen
	v_add_lshl_u32 v0, v8, v19, 1
	s_and_b64 s[2:3], vcc, s[2:3]
	v_cndmask_b32_e64 v0, v20, v0, s[2:3]
	buffer_store_short v7, v0, s[72:75], 0 offen
	v_add_lshl_u32 v0, v8, v17, 1
	s_and_b64 vcc, vcc, s[0:1]
	v_lshrrev_b32_e32 v18, 16, v7
	v_cndmask_b32_e32 v0, v20, v0, vcc
	buffer_store_short v18, v0, s[72:75], 0 offen
	s_endpgm
.Lfunc_end0:
	.size	mx_gemm, .Lfunc_end0-mx_gemm
	.section	.rodata,"a",@progbits
	.p2align	6, 0x0
	.amdhsa_kernel mx_gemm
		.amdhsa_group_segment_fixed_size 35056
		.amdhsa_private_segment_fixed_size 0
		.amdhsa_kernarg_size 328
		.amdhsa_user_sgpr_count 16
		.amdhsa_user_sgpr_dispatch_ptr 1
		.amdhsa_user_sgpr_queue_ptr 1
		.amdhsa_user_sgpr_kernarg_segment_ptr 1
		.amdhsa_user_sgpr_dispatch_id 1
		.amdhsa_user_sgpr_kernarg_preload_length 8
		.amdhsa_user_sgpr_kernarg_preload_offset 0
		.amdhsa_user_sgpr_private_segment_size 0
		.amdhsa_uses_dynamic_stack 0
		.amdhsa_enable_private_segment 0
		.amdhsa_system_sgpr_workgroup_id_x 1
		.amdhsa_system_sgpr_workgroup_id_y 1
		.amdhsa_system_sgpr_workgroup_id_z 1
		.amdhsa_system_sgpr_workgroup_info 0
		.amdhsa_system_vgpr_workitem_id 2
		.amdhsa_next_free_vgpr 106
		.amdhsa_next_free_sgpr 100
		.amdhsa_accum_offset 108
		.amdhsa_reserve_vcc 1
		.amdhsa_reserve_xnack_mask 1
		.amdhsa_float_round_mode_32 0
		.amdhsa_float_round_mode_16_64 0
		.amdhsa_float_denorm_mode_32 3
		.amdhsa_float_denorm_mode_16_64 3
		.amdhsa_dx10_clamp 1
		.amdhsa_ieee_mode 1
		.amdhsa_fp16_overflow 0
		.amdhsa_tg_split 0
		.amdhsa_exception_fp_ieee_invalid_op 0
		.amdhsa_exception_fp_denorm_src 0
		.amdhsa_exception_fp_ieee_div_zero 0
		.amdhsa_exception_fp_ieee_overflow 0
		.amdhsa_exception_fp_ieee_underflow 0
		.amdhsa_exception_fp_ieee_inexact 0
		.amdhsa_exception_int_div_zero 0
	.end_amdhsa_kernel
	.text
	.section	.AMDGPU.csdata,"",@progbits
	.text
	.p2alignl 6, 3212836864
	.fill 256, 4, 3212836864
	.section	.AMDGPU.gpr_maximums,"",@progbits
	.text
	.section	".note.GNU-stack","",@progbits
	.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     0
    .args:
      - .address_space:  global
        .offset:         0
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         8
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         16
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         24
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         32
        .size:           8
        .value_kind:     global_buffer
      - .offset:         40
        .size:           4
        .value_kind:     by_value
      - .offset:         44
        .size:           4
        .value_kind:     by_value
      - .offset:         48
        .size:           4
        .value_kind:     by_value
      - .address_space:  global
        .offset:         56
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         64
        .size:           8
        .value_kind:     global_buffer
      - .offset:         72
        .size:           4
        .value_kind:     hidden_block_count_x
      - .offset:         76
        .size:           4
        .value_kind:     hidden_block_count_y
      - .offset:         80
        .size:           4
        .value_kind:     hidden_block_count_z
      - .offset:         84
        .size:           2
        .value_kind:     hidden_group_size_x
      - .offset:         86
        .size:           2
        .value_kind:     hidden_group_size_y
      - .offset:         88
        .size:           2
        .value_kind:     hidden_group_size_z
      - .offset:         90
        .size:           2
        .value_kind:     hidden_remainder_x
      - .offset:         92
        .size:           2
        .value_kind:     hidden_remainder_y
      - .offset:         94
        .size:           2
        .value_kind:     hidden_remainder_z
      - .offset:         112
        .size:           8
        .value_kind:     hidden_global_offset_x
      - .offset:         120
        .size:           8
        .value_kind:     hidden_global_offset_y
      - .offset:         128
        .size:           8
        .value_kind:     hidden_global_offset_z
      - .offset:         136
        .size:           2
        .value_kind:     hidden_grid_dims
      - .offset:         152
        .size:           8
        .value_kind:     hidden_hostcall_buffer
      - .offset:         160
        .size:           8
        .value_kind:     hidden_multigrid_sync_arg
      - .offset:         168
        .size:           8
        .value_kind:     hidden_heap_v1
      - .offset:         176
        .size:           8
        .value_kind:     hidden_default_queue
      - .offset:         184
        .size:           8
        .value_kind:     hidden_completion_action
      - .offset:         192
        .size:           4
        .value_kind:     hidden_dynamic_lds_size
      - .offset:         272
        .size:           8
        .value_kind:     hidden_queue_ptr
    .group_segment_fixed_size: 35056
    .kernarg_segment_align: 8
    .kernarg_segment_size: 328
    .max_flat_workgroup_size: 256
    .name:           mx_gemm
    .private_segment_fixed_size: 0
    .sgpr_count:     106
    .sgpr_spill_count: 5
    .symbol:         mx_gemm.kd
    .uniform_work_group_size: 1
    .uses_dynamic_stack: false
    .vgpr_count:     106
    .vgpr_spill_count: 0
    .wavefront_size: 64
amdhsa.target:   amdgpu9.50-amd-amdhsa-unknown-gfx950
amdhsa.version:
  - 1
  - 2
...
	.end_amdgpu_metadata
